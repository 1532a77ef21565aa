//! What the machine's processors are to this process: which it may use, which share a core, which are fast, which memory is near.
//!
//! Everything comes from files that Linux keeps under `/sys` and `/proc`, read below a root that tests replace. What a system does
//! not tell is left out: no information means that all processors count alike.

use super::cgroup;
use std::collections::BTreeSet;
use std::path::Path;

/// The processors that this process may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Physical cores worth computing on, each by its first processor; on a hybrid machine the fast ones only.
    pub cores: Vec<usize>,
    /// Processors of each memory node that has cores of `cores`, by node; one entry where memory is uniform.
    pub nodes: Vec<Vec<usize>>,
    /// Processors that a container's limit of time amounts to, rounded down; `None` without a limit.
    pub limit: Option<usize>,
}

impl Topology {
    /// Reads the system's files; `None` where it has none (or does not let them be read).
    pub fn read() -> Option<Self> {
        Self::below(Path::new("/"))
    }

    /// As [`Topology::read`], with another root of the file system.
    pub fn below(root: &Path) -> Option<Self> {
        let status = text(root, "proc/self/status")?;
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        let allowed: BTreeSet<usize> = parse_cpu_list(allowed)?.into_iter().collect();
        let fast = fast(root, &allowed);
        let mut seen = BTreeSet::new();
        let mut cores = Vec::new();
        for &cpu in &fast {
            let siblings =
                text(root, &format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))
                    .and_then(|list| parse_cpu_list(&list))
                    .unwrap_or_else(|| vec![cpu]);
            // A core counts once, whichever of its processors we may use.
            if seen.insert(siblings.first().copied().unwrap_or(cpu)) {
                cores.push(cpu);
            }
        }
        if cores.is_empty() {
            return None;
        }
        let nodes = nodes(root, &fast, &cores);
        Some(Self { cores, nodes, limit: limit(root) })
    }

    /// Threads to compute with by default: one per fast physical core, no more than a container's limit allows.
    ///
    /// A second hardware thread of a core adds nothing to kernels that already keep its units busy, and a slow core makes the others
    /// wait for its share.
    pub fn default_threads(&self) -> usize {
        self.cores.len().min(self.limit.unwrap_or(usize::MAX)).max(1)
    }
}

/// The allowed processors that are fast: on a machine with two kinds of cores, the better kind.
fn fast(root: &Path, allowed: &BTreeSet<usize>) -> BTreeSet<usize> {
    // Intel's hybrid processors list their performance cores; ARM's kernels give each processor a capacity.
    if let Some(list) = text(root, "sys/devices/cpu_core/cpus").and_then(|list| parse_cpu_list(&list)) {
        let fast: BTreeSet<usize> = list.into_iter().filter(|cpu| allowed.contains(cpu)).collect();
        if !fast.is_empty() {
            return fast;
        }
    }
    let capacity = |cpu: usize| {
        text(root, &format!("sys/devices/system/cpu/cpu{cpu}/cpu_capacity"))?.trim().parse::<u32>().ok()
    };
    let Some(largest) = allowed.iter().filter_map(|&cpu| capacity(cpu)).max() else {
        return allowed.clone();
    };
    // Middle cores are worth having, little ones are not.
    allowed.iter().copied().filter(|&cpu| capacity(cpu).is_none_or(|c| 2 * c >= largest)).collect()
}

/// Fast processors by memory node.
fn nodes(root: &Path, fast: &BTreeSet<usize>, cores: &[usize]) -> Vec<Vec<usize>> {
    let online = text(root, "sys/devices/system/node/online").and_then(|list| parse_cpu_list(&list));
    let mut nodes: Vec<Vec<usize>> = Vec::new();
    for node in online.unwrap_or_default() {
        let cpus = text(root, &format!("sys/devices/system/node/node{node}/cpulist"))
            .and_then(|list| parse_cpu_list(&list))
            .unwrap_or_default();
        let cpus: Vec<usize> = cpus.into_iter().filter(|cpu| fast.contains(cpu)).collect();
        // Some nodes are memory alone.
        if cpus.iter().any(|cpu| cores.contains(cpu)) {
            nodes.push(cpus);
        }
    }
    let found: usize = nodes.iter().map(Vec::len).sum();
    if found == fast.len() { nodes } else { vec![fast.iter().copied().collect()] }
}

/// Processors' worth of time that control groups allow, over all groups from this process's up to the root.
fn limit(root: &Path) -> Option<usize> {
    let quotas = cgroup::folders(root, "cpu").into_iter().filter_map(|group| quota(&group));
    quotas.reduce(f64::min).map(|cpus| cpus.max(1.0) as usize)
}

/// Processors' worth of time that one control group allows.
fn quota(group: &Path) -> Option<f64> {
    let read = |name: &str| std::fs::read_to_string(group.join(name)).ok();
    let (quota, period) = match read("cpu.max") {
        Some(max) => {
            let mut numbers = max.split_ascii_whitespace().map(str::parse::<f64>);
            (numbers.next()?.ok()?, numbers.next()?.ok()?)
        }
        None => {
            let number = |name| read(name)?.trim().parse::<f64>().ok();
            (number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?)
        }
    };
    // "max", or -1 in version 1, stands for no limit.
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

fn text(root: &Path, path: &str) -> Option<String> {
    std::fs::read_to_string(root.join(path)).ok()
}

/// The numbers of a list such as `0-3,8,10-11`.
fn parse_cpu_list(list: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if last < first || last - first > 1 << 16 {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    //! Machines are drawn as trees of files in a temporary folder.
    use super::*;
    use std::path::PathBuf;

    struct Machine(PathBuf);

    impl Machine {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("topology-{name}-{}", std::process::id()));
            let machine = Self(root);
            for (path, content) in files {
                machine.write(path, content);
            }
            machine
        }

        fn write(&self, path: &str, content: &str) {
            let path = self.0.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }

        fn siblings(&self, pairs: &[&[usize]]) {
            for cpus in pairs {
                let list = cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
                for cpu in *cpus {
                    self.write(
                        &format!("sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"),
                        &list,
                    );
                }
            }
        }

        fn topology(&self) -> Topology {
            Topology::below(&self.0).unwrap()
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn hardware_threads_of_a_core_count_once() {
        let machine = Machine::new("smt", &[("proc/self/status", "Name:\tx\nCpus_allowed_list:\t0-7\n")]);
        machine.siblings(&[&[0, 4], &[1, 5], &[2, 6], &[3, 7]]);
        let found = machine.topology();
        assert_eq!((found.cores.clone(), found.default_threads()), (vec![0, 1, 2, 3], 4));
        assert_eq!(found.nodes, [(0..8).collect::<Vec<_>>()]);
        // Bound to the second threads of two cores.
        machine.write("proc/self/status", "Cpus_allowed_list:\t5,6\n");
        assert_eq!(machine.topology().cores, [5, 6]);
    }

    #[test]
    fn hybrid_machines_compute_on_their_fast_cores() {
        let machine = Machine::new("intel", &[("proc/self/status", "Cpus_allowed_list:\t0-11\n")]);
        machine.siblings(&[&[0, 1], &[2, 3], &[4, 5], &[6, 7], &[8], &[9], &[10], &[11]]);
        machine.write("sys/devices/cpu_core/cpus", "0-7\n");
        machine.write("sys/devices/cpu_atom/cpus", "8-11\n");
        assert_eq!(machine.topology().cores, [0, 2, 4, 6]);
        // Where only the slow ones are allowed, they are what there is.
        machine.write("proc/self/status", "Cpus_allowed_list:\t9-11\n");
        assert_eq!(machine.topology().cores, [9, 10, 11]);

        let machine = Machine::new("arm", &[("proc/self/status", "Cpus_allowed_list:\t0-7\n")]);
        for cpu in 0..8 {
            let capacity = ["250", "250", "250", "250", "760", "760", "760", "1024"][cpu];
            machine.write(&format!("sys/devices/system/cpu/cpu{cpu}/cpu_capacity"), capacity);
        }
        assert_eq!(machine.topology().cores, [4, 5, 6, 7]);
    }

    #[test]
    fn limits_of_containers_bound_the_threads() {
        let status = ("proc/self/status", "Cpus_allowed_list:\t0-15\n");
        let machine = Machine::new("plain", &[status]);
        assert_eq!((machine.topology().limit, machine.topology().default_threads()), (None, 16));
        // Version 2, the limit in a group above; inside the container the group is the mount itself.
        let machine = Machine::new("v2", &[status, ("proc/self/cgroup", "0::/pods/one\n")]);
        machine.write("sys/fs/cgroup/pods/one/cpu.max", "max 100000\n");
        assert_eq!(machine.topology().limit, None);
        machine.write("sys/fs/cgroup/pods/cpu.max", "450000 100000\n");
        assert_eq!(machine.topology().default_threads(), 4);
        machine.write("sys/fs/cgroup/cpu.max", "50000 100000\n");
        assert_eq!(machine.topology().default_threads(), 1);
        // Version 1.
        let machine = Machine::new("v1", &[status, ("proc/self/cgroup", "5:memory:/x\n4:cpu,cpuacct:/x\n")]);
        machine.write("sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us", "-1\n");
        machine.write("sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us", "100000\n");
        assert_eq!(machine.topology().limit, None);
        machine.write("sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us", "300000\n");
        assert_eq!(machine.topology().default_threads(), 3);
    }

    #[test]
    fn memory_nodes_hold_the_processors_that_count() {
        let machine = Machine::new("numa", &[("proc/self/status", "Cpus_allowed_list:\t0-7\n")]);
        machine.write("sys/devices/system/node/online", "0-2\n");
        machine.write("sys/devices/system/node/node0/cpulist", "0-3\n");
        machine.write("sys/devices/system/node/node1/cpulist", "4-7\n");
        machine.write("sys/devices/system/node/node2/cpulist", "\n");
        assert_eq!(machine.topology().nodes, [vec![0, 1, 2, 3], vec![4, 5, 6, 7]]);
        machine.write("proc/self/status", "Cpus_allowed_list:\t5-6\n");
        assert_eq!(machine.topology().nodes, [[5, 6]]);
        // Processors that belong to no node: memory counts as uniform.
        machine.write("proc/self/status", "Cpus_allowed_list:\t2-9\n");
        assert_eq!(machine.topology().nodes, [(2..10).collect::<Vec<_>>()]);
    }

    #[test]
    fn nothing_to_read_is_no_topology() {
        assert_eq!(Topology::below(Path::new("/nowhere")), None);
    }

    #[test]
    fn cpu_lists_parse() {
        assert_eq!(parse_cpu_list("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse_cpu_list("\t5"), Some(vec![5]));
        assert_eq!(parse_cpu_list("3-1"), None);
        assert_eq!(parse_cpu_list("x"), None);
    }
}
