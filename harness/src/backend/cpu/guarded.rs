//! Memory with guards on both sides, in one allocation: stages are given what lies between.

use std::ops::{Deref, DerefMut, Range};

use super::super::{Guards, LoadError};

/// Bytes of a guard.
const GUARD: usize = 4096;

/// What memory here is made of.
pub(super) trait Word: Copy {
    /// What guards are filled with: no number that a stage would write.
    const FILL: Self;

    /// The value's bytes.
    fn append(self, to: &mut Vec<u8>);
}

macro_rules! word {
    ($($type:ty: $fill:expr),*) => {
        $(impl Word for $type {
            const FILL: Self = $fill;

            fn append(self, to: &mut Vec<u8>) {
                to.extend_from_slice(&self.to_le_bytes());
            }
        })*
    };
}

word!(u8: 0x5a, u32: 0x5ac3_96e1, f32: f32::from_bits(0x5ac3_96e1), u64: 0x5ac3_96e1_5ac3_96e1);

/// A slice of its own memory. By default it is empty, and has no guards.
#[derive(Default)]
pub(super) struct Guarded<T> {
    name: String,
    whole: Vec<T>,
    middle: Range<usize>,
}

impl<T: Word> Guarded<T> {
    /// Exactly `count` values between two guards; a refused allocation is an answer, not an abort.
    pub(super) fn new(name: &str, count: Option<usize>, value: T) -> Result<Self, LoadError> {
        let guard = GUARD / size_of::<T>();
        let all = count.and_then(|count| count.checked_add(2 * guard));
        let bytes = all.and_then(|all| all.checked_mul(size_of::<T>()));
        let (Some(count), Some(all), Some(bytes)) = (count, all, bytes) else {
            return Err(LoadError::Unsupported(format!("{name}: its bytes cannot be counted")));
        };
        let mut whole = Vec::new();
        if whole.try_reserve_exact(all).is_err() {
            let why = format!("{name} needs {bytes} bytes with its guards, allocation refused");
            return Err(LoadError::Unsupported(why));
        }
        whole.resize(guard, T::FILL);
        whole.resize(guard + count, value);
        whole.resize(all, T::FILL);
        Ok(Guarded { name: name.to_owned(), whole, middle: guard..guard + count })
    }

    /// All of it, and where its own part lies.
    pub(super) fn whole(&mut self) -> (&mut [T], Range<usize>) {
        (&mut self.whole, self.middle.clone())
    }

    /// Looks at both guards.
    pub(super) fn look(&self, guards: &mut Guards) {
        if self.whole.is_empty() {
            return;
        }
        let bytes = |part: &[T]| {
            let mut bytes = Vec::with_capacity(size_of_val(part));
            part.iter().for_each(|word| word.append(&mut bytes));
            bytes
        };
        let filled = bytes(&vec![T::FILL; GUARD / size_of::<T>()]);
        let (before, after) = (bytes(&self.whole[..self.middle.start]), bytes(&self.whole[self.middle.end..]));
        guards.look(&self.name, size_of_val(&**self), [&before, &after], [&filled, &filled]);
    }
}

impl<T> Deref for Guarded<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.whole[self.middle.clone()]
    }
}

impl<T> DerefMut for Guarded<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.whole[self.middle.clone()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_beside_it_is_seen() {
        let mut memory = Guarded::new("x", Some(3), 7u32).unwrap();
        memory.fill(0);
        let look = |memory: &Guarded<u32>| {
            let mut guards = Guards::default();
            memory.look(&mut guards);
            guards
        };
        assert_eq!((look(&memory).looked_at, look(&memory).damaged.len(), memory.len()), (1, 0, 3));
        let (whole, middle) = memory.whole();
        whole[middle.start - 1] ^= 1 << 31;
        whole[middle.end] = 0;
        let damaged = look(&memory).damaged;
        let told = damaged.iter().map(|d| (d.name.as_str(), d.at, d.bytes, d.of)).collect::<Vec<_>>();
        assert_eq!(told, [("x", -1, 1, 12), ("x", 12, 4, 12)]);
    }

    #[test]
    fn nothing_has_no_guards_and_no_bytes_have_some() {
        let mut guards = Guards::default();
        Guarded::<f32>::default().look(&mut guards);
        assert_eq!(guards.looked_at, 0);
        Guarded::new("none", Some(0), 0u8).unwrap().look(&mut guards);
        assert_eq!((guards.looked_at, guards.damaged.len()), (1, 0));
    }

    #[test]
    fn what_cannot_be_had_is_told() {
        let refused = |count| match Guarded::new("x", count, 0u64) {
            Err(LoadError::Unsupported(why)) => why,
            _ => String::new(),
        };
        assert!(refused(None).contains("cannot be counted") && refused(Some(usize::MAX)).contains("cannot be"));
        assert!(refused(Some(1 << 59)).contains("allocation refused"), "{}", refused(Some(1 << 59)));
    }
}
