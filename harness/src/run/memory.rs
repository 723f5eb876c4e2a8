//! Memory that is left on this machine: a case that needs more is refused, not killed.

use std::fs;

/// Bytes that this process may still use: what the kernel calls available, within the limit of the control group.
/// `None` where neither is known.
pub(super) fn available() -> Option<u64> {
    [of_machine(), of_control_group()].into_iter().flatten().min()
}

fn of_machine() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

fn of_control_group() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|l| l.strip_prefix("0::/"))?;
    let read =
        |file: &str| fs::read_to_string(format!("/sys/fs/cgroup/{path}/{file}")).ok()?.trim().parse::<u64>().ok();
    Some(read("memory.max")?.saturating_sub(read("memory.current")?))
}
