//! How much of the machine's memory this process may use: what the system can give, within the limits of control groups.

use super::cgroup;
use crate::DeviceMemory;
use std::path::Path;

/// Memory of this machine, as far as this process may use it.
pub(super) fn host_memory() -> DeviceMemory {
    below(Path::new("/"))
}

/// The same for a tree of files that stands for `/`.
fn below(root: &Path) -> DeviceMemory {
    let info = std::fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let bytes = |name: &str| number(&info, name).map(|kib| kib.saturating_mul(1024));
    let total = bytes("MemTotal:").unwrap_or(usize::MAX);
    let mut memory = DeviceMemory { free: bytes("MemAvailable:").unwrap_or(total), total };
    for group in cgroup::folders(root, "memory") {
        if let Some(DeviceMemory { free, total }) = of_group(&group) {
            memory = DeviceMemory { free: memory.free.min(free), total: memory.total.min(total) };
        }
    }
    memory
}

/// What a control group may use; `None` where it has no limit.
fn of_group(group: &Path) -> Option<DeviceMemory> {
    let read = |name: &str| std::fs::read_to_string(group.join(name)).ok();
    let bytes = |name: &str| read(name)?.trim().parse::<usize>().ok();
    // "max" of version 2 is no number; version 1 has one near 2^63 where there is no limit, which is above the machine's memory.
    let (total, used, cached) = match bytes("memory.max") {
        Some(limit) => (limit, bytes("memory.current"), ["active_file", "inactive_file"]),
        None => (
            bytes("memory.limit_in_bytes")?,
            bytes("memory.usage_in_bytes"),
            ["total_active_file", "total_inactive_file"],
        ),
    };
    // Pages of files count as used, and the system takes them back when memory is wanted.
    let stat = read("memory.stat").unwrap_or_default();
    let cached: usize = cached.iter().filter_map(|name| number(&stat, name)).sum();
    let used = used.unwrap_or(0).saturating_sub(cached);
    Some(DeviceMemory { free: total.saturating_sub(used), total })
}

/// The number behind a name at the beginning of a line.
fn number(text: &str, name: &str) -> Option<usize> {
    let mut lines = text.lines().map(str::split_ascii_whitespace);
    lines.find_map(|mut words| (words.next() == Some(name)).then(|| words.next()?.parse().ok())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;
    const MEMINFO: &str =
        "MemTotal:       16384000 kB\nMemFree:         1000000 kB\nMemAvailable:    8192000 kB\n";

    fn machine(name: &str, files: &[(&str, &str)]) -> DeviceMemory {
        let root = std::env::temp_dir().join(format!("host-memory-{name}-{}", std::process::id()));
        for (path, content) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        let memory = below(&root);
        std::fs::remove_dir_all(root).unwrap();
        memory
    }

    #[test]
    fn without_limits_it_is_what_the_system_can_give() {
        let memory = machine("plain", &[("proc/meminfo", MEMINFO)]);
        assert_eq!(memory, DeviceMemory { free: 8000 * MIB, total: 16000 * MIB });
        let unlimited = [
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "0::/pod\n"),
            ("sys/fs/cgroup/pod/memory.max", "max\n"),
        ];
        assert_eq!(machine("max", &unlimited), memory);
        let unlimited = [
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "4:memory:/pod\n"),
            ("sys/fs/cgroup/memory/pod/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        assert_eq!(machine("v1-max", &unlimited), memory);
    }

    #[test]
    fn the_tightest_group_limits_it_and_cached_files_are_free() {
        let memory = machine(
            "v2",
            &[
                ("proc/meminfo", MEMINFO),
                ("proc/self/cgroup", "0::/pods/one\n"),
                ("sys/fs/cgroup/pods/one/memory.max", "max\n"),
                ("sys/fs/cgroup/pods/memory.max", "1048576000\n"),
                ("sys/fs/cgroup/pods/memory.current", "524288000\n"),
                (
                    "sys/fs/cgroup/pods/memory.stat",
                    "anon 1\nactive_file 104857600\ninactive_file 104857600\n",
                ),
            ],
        );
        assert_eq!(memory, DeviceMemory { free: 700 * MIB, total: 1000 * MIB });
        let memory = machine(
            "v1",
            &[
                ("proc/meminfo", MEMINFO),
                ("proc/self/cgroup", "5:cpu:/x\n4:memory:/pod\n0::/\n"),
                ("sys/fs/cgroup/memory/pod/memory.limit_in_bytes", "1048576000\n"),
                ("sys/fs/cgroup/memory/pod/memory.usage_in_bytes", "524288000\n"),
                ("sys/fs/cgroup/memory/pod/memory.stat", "total_inactive_file 104857600\n"),
            ],
        );
        assert_eq!(memory, DeviceMemory { free: 600 * MIB, total: 1000 * MIB });
    }

    #[test]
    fn a_container_sees_its_own_group_as_the_root() {
        let memory = machine(
            "container",
            &[
                ("proc/meminfo", MEMINFO),
                ("proc/self/cgroup", "0::/machine.slice/abc\n"),
                ("sys/fs/cgroup/memory.max", "1048576000\n"),
                ("sys/fs/cgroup/memory.current", "1148576000\n"),
            ],
        );
        assert_eq!(memory, DeviceMemory { free: 0, total: 1000 * MIB });
    }
}
