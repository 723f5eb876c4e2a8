//! Memory around tensors and between them: nobody may write there.

use serde::{Deserialize, Serialize};

use super::{Capabilities, Check, Failure};

/// What a device found of the guard bytes that lie on both sides of its memory, after all runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Guards {
    /// Allocations that have guards: tensors, what they were converted to, scratch.
    pub looked_at: usize,
    /// Guards that do not hold any more what they were filled with. A few say enough.
    pub damaged: Vec<Damage>,
}

/// A guard that was written to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Damage {
    /// The name of the memory that it guards.
    pub name: String,
    /// The first byte that differs, from the start of that memory: negative before it, else from its length on.
    pub at: i64,
    /// Bytes that differ.
    pub bytes: usize,
    /// The length of the memory.
    pub of: usize,
}

impl Guards {
    /// Damage that is told at most.
    pub const MOST: usize = 16;

    /// Looks at one allocation: its guards as they are, and as they were filled.
    pub fn look(&mut self, name: &str, len: usize, [before, after]: [&[u8]; 2], filled: [&[u8]; 2]) {
        self.looked_at += 1;
        let starts = [-(before.len() as i64), len as i64];
        for ((is, was), start) in [before, after].into_iter().zip(filled).zip(starts) {
            let differs = || (0..is.len()).filter(|i| is.get(*i) != was.get(*i));
            let Some(first) = differs().next().filter(|_| self.damaged.len() < Self::MOST) else { continue };
            let (at, bytes) = (start + first as i64, differs().count());
            self.damaged.push(Damage { name: name.to_owned(), at, bytes, of: len });
        }
    }
}

/// No guard may have been written to.
pub fn guards_check(device: &Capabilities, guards: Option<&Guards>) -> Check {
    const NAME: &str = "guards";
    let Some(guards) = guards.filter(|_| device.guards) else {
        return Check::not_possible(NAME, "the device's memory has no guards");
    };
    let Some(first) = guards.damaged.first() else { return Check::passed(NAME) };
    let Damage { name, at, bytes, of } = first;
    let side = if *at < 0 { "before" } else { "after" };
    let what = format!(
        "{} of {} allocations: {bytes} bytes {side} '{name}' were written",
        guards.damaged.len(),
        guards.looked_at
    );
    let distance = if *at < 0 { -at } else { at - *of as i64 };
    let worst = match at {
        ..0 => format!("{distance} bytes before its start"),
        _ => format!("{distance} bytes behind its end, which is at {of}"),
    };
    Check::failed(NAME, Failure { worst: Some(worst), ..Failure::new(what) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::Status;

    #[test]
    fn damage_is_told_and_health_is_not() {
        let device = Capabilities { guards: true, ..Capabilities::OWN };
        let filled = [&[7u8; 8][..]; 2];
        let mut guards = Guards::default();
        guards.look("x", 100, filled, filled);
        assert_eq!(guards_check(&device, Some(&guards)), Check::passed("guards"));
        guards.look("out", 100, [&[7; 8], &[7, 7, 0, 0, 7, 0, 7, 7]], filled);
        guards.look("ids", 4, [&[7, 7, 7, 7, 7, 7, 7, 1], &[7; 8]], filled);
        assert_eq!(guards.damaged[0], Damage { name: "out".into(), at: 102, bytes: 3, of: 100 });
        assert_eq!((guards.damaged[1].at, guards.damaged[1].bytes), (-1, 1));
        let Status::Failed(failure) = guards_check(&device, Some(&guards)).status else { panic!("seen") };
        assert_eq!(failure.what, "2 of 3 allocations: 3 bytes after 'out' were written");
        assert_eq!(failure.worst.as_deref(), Some("2 bytes behind its end, which is at 100"));
        for possible in [guards_check(&Capabilities::OWN, Some(&guards)), guards_check(&device, None)] {
            assert!(matches!(possible.status, Status::NotPossible { .. }));
        }
    }
}
