//! Control groups of Linux, versions 1 and 2: which of them limit this process.

use std::path::{Path, PathBuf};

/// The folders of this process's group for a controller and of all groups above it, as far as they may exist.
///
/// `root`: `/`, or a tree of files that stands for it. `controller`: as version 1 names it, such as `cpu` or `memory`.
pub(super) fn folders(root: &Path, controller: &str) -> Vec<PathBuf> {
    let own = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut folders = Vec::new();
    for line in own.lines() {
        // `0::/path` is version 2, `4:cpu,cpuacct:/path` version 1.
        let mut fields = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let mounts = if id == "0" && controllers.is_empty() {
            ["".to_owned(), "unified".to_owned()]
        } else if controllers.split(',').any(|c| c == controller) {
            [controller.to_owned(), controllers.to_owned()]
        } else {
            continue;
        };
        // Inside a container the path may not be there: its own group is then what is mounted.
        let mut group = PathBuf::from(path.trim_start_matches('/'));
        loop {
            folders.extend(mounts.iter().map(|mount| root.join("sys/fs/cgroup").join(mount).join(&group)));
            if !group.pop() {
                break;
            }
        }
    }
    folders
}
