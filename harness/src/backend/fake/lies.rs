//! False values: what a wrong kernel might leave behind. All are deterministic.

use conform_cases::formats::ElemType;
use conform_cases::plan::Tensor;

/// An output on its way to the reader.
pub(super) struct Output<'a> {
    tensor: &'a Tensor,
    /// The whole allocation.
    bytes: &'a mut [u8],
    /// What the allocation held before the step.
    poison: &'a [u8],
    /// Runs since the plan was loaded.
    runs: u32,
}

/// What a lie does to an output, given its value (1 where it takes none).
type Tell = fn(&mut Output<'_>, f32);

/// Every lie.
const LIES: &[(&str, Tell)] = &[
    ("scale", |o, by| o.each_f32(|v| v * by)),
    ("zeros", |o, _| o.each(|bytes| bytes.fill(0))),
    ("zero-one", |o, _| o.with_largest(|bytes, _| bytes.fill(0))),
    ("negate-one", |o, _| o.with_largest(negate)),
    ("swap-tokens", |o, _| o.swap_slices()),
    ("swap-indices", |o, _| o.swap_indices()),
    ("unwritten", |o, _| o.leave_unwritten()),
    ("flip", |o, _| o.flip_in_even_runs()),
    ("flip-fifth", |o, _| o.flip_in_fifth_run()),
    ("nan", |o, _| o.with_middle(|bytes| bytes.copy_from_slice(&f32::NAN.to_le_bytes()))),
];

/// One of the lies, with its value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lie {
    name: &'static str,
    tell: Tell,
    value: f32,
}

impl PartialEq for Lie {
    fn eq(&self, other: &Self) -> bool {
        (self.name, self.value) == (other.name, other.value)
    }
}

impl Lie {
    pub(super) fn parse(name: &str, value: Option<&str>) -> Result<Self, String> {
        let (name, tell) =
            *LIES.iter().find(|l| l.0 == name).ok_or_else(|| format!("there is no behaviour '{name}'"))?;
        let value = match (name, value) {
            ("scale", v) => v.and_then(|v| v.parse().ok()).ok_or("scale needs a factor: scale=1.01")?,
            (_, None) => 1.0,
            (_, Some(_)) => return Err(format!("behaviour '{name}' takes no value")),
        };
        Ok(Lie { name, tell, value })
    }

    pub(super) fn tell(&self, output: &mut Output<'_>) {
        (self.tell)(output, self.value);
    }
}

/// Changes one byte of an input.
pub(super) fn touch(bytes: &mut [u8]) {
    if let Some(byte) = bytes.get_mut(bytes.len() / 2) {
        *byte ^= 1;
    }
}

fn negate(bytes: &mut [u8], ty: ElemType) {
    match (ty, <[u8; 4]>::try_from(&*bytes)) {
        (ElemType::F32, Ok(v)) => bytes.copy_from_slice(&(-f32::from_le_bytes(v)).to_le_bytes()),
        (_, Ok(v)) => bytes.copy_from_slice(&i32::from_le_bytes(v).wrapping_neg().to_le_bytes()),
        _ => {}
    }
}

impl<'a> Output<'a> {
    pub(super) fn new(tensor: &'a Tensor, bytes: &'a mut [u8], poison: &'a [u8], runs: u32) -> Self {
        Output { tensor, bytes, poison, runs }
    }

    /// Offsets of the view's rows, in order.
    fn rows(&self) -> Vec<usize> {
        let [_, n1, n2, n3] = self.tensor.shape;
        let at = |i: usize| [i % n1, i / n1 % n2, i / n1 / n2];
        (0..n1 * n2 * n3).map(|i| self.tensor.row_range(at(i)).start).collect()
    }

    /// Offsets of the view's elements, in order. Outputs are not blocked.
    fn elements(&self) -> Vec<usize> {
        let (count, bytes) = (self.tensor.shape[0], self.tensor.ty.block_bytes());
        self.rows().into_iter().flat_map(|row| (0..count).map(move |i| row + i * bytes)).collect()
    }

    fn element(&mut self, at: usize) -> &mut [u8] {
        let size = self.tensor.ty.block_bytes();
        &mut self.bytes[at..at + size]
    }

    fn each(&mut self, change: impl Fn(&mut [u8])) {
        for at in self.elements() {
            change(self.element(at));
        }
    }

    fn each_f32(&mut self, change: impl Fn(f32) -> f32) {
        if self.tensor.ty != ElemType::F32 {
            return;
        }
        self.each(|bytes| {
            if let Ok(v) = <[u8; 4]>::try_from(&*bytes) {
                bytes.copy_from_slice(&change(f32::from_le_bytes(v)).to_le_bytes());
            }
        });
    }

    /// The element with the largest magnitude; the first of several.
    fn with_largest(&mut self, change: impl Fn(&mut [u8], ElemType)) {
        let ty = self.tensor.ty;
        let mut best: Option<(f64, usize)> = None;
        for at in self.elements() {
            let mut value = [0.0];
            ty.decode(self.element(at), &mut value);
            if best.is_none_or(|(most, _)| value[0].abs() > most) {
                best = Some((value[0].abs(), at));
            }
        }
        if let Some((_, at)) = best {
            change(self.element(at), ty);
        }
    }

    /// An element neither first nor last, where the output has that many.
    fn with_middle(&mut self, change: impl Fn(&mut [u8])) {
        let elements = self.elements();
        if let Some(at) = elements.get(elements.len() / 2) {
            change(self.element(*at));
        }
    }

    /// Exchanges the first two slices of the outermost dimension that has two: the rows of two tokens.
    fn swap_slices(&mut self) {
        let rows = self.rows();
        let Some(outer) = (1..4).rev().find(|d| self.tensor.shape[*d] > 1) else { return };
        let slice: usize = self.tensor.shape[1..outer].iter().product();
        for i in 0..slice {
            self.swap(rows[i], rows[slice + i], self.tensor.row_bytes());
        }
    }

    /// Exchanges the first two indices of the first row.
    fn swap_indices(&mut self) {
        if let (ElemType::I32, 2.., [row, ..]) = (self.tensor.ty, self.tensor.shape[0], &self.rows()[..]) {
            self.swap(*row, row + 4, 4);
        }
    }

    fn swap(&mut self, a: usize, b: usize, len: usize) {
        for i in 0..len {
            self.bytes.swap(a + i, b + i);
        }
    }

    fn leave_unwritten(&mut self) {
        let elements = self.elements();
        let Some(at) = elements.get(elements.len() / 2) else { return };
        let size = self.tensor.ty.block_bytes();
        if let Some(poison) = self.poison.get(*at..at + size) {
            self.bytes[*at..at + size].copy_from_slice(poison);
        }
    }

    fn flip_in_fifth_run(&mut self) {
        if self.runs == 5 {
            self.with_middle(|bytes| bytes[0] ^= 1);
        }
    }

    fn flip_in_even_runs(&mut self) {
        if self.runs.is_multiple_of(2) {
            self.with_middle(|bytes| bytes[0] ^= 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use conform_cases::plan::Role;

    /// What a lie makes of an output `[2, 1, 3]` of the values 1 to 6, whose allocation has a margin of poison 9.
    fn told(name: &str, value: Option<&str>, ty: ElemType, runs: u32) -> Vec<f64> {
        let shape = [2, 1, 3, 1];
        let tensor = Tensor::whole("o", ty, shape, Role::Output).with_margins([true, false, false, false]);
        let word = |v: u8| if ty == ElemType::F32 { f32::from(v).to_le_bytes() } else { i32::from(v).to_le_bytes() };
        let mut bytes: Vec<u8> = [9, 1, 2, 9, 9, 3, 4, 9, 9, 5, 6, 9].into_iter().flat_map(word).collect();
        let poison: Vec<u8> = [9; 12].into_iter().flat_map(word).collect();
        Lie::parse(name, value).unwrap().tell(&mut Output::new(&tensor, &mut bytes, &poison, runs));
        let mut values = vec![0.0; 12];
        ty.decode(&bytes, &mut values);
        for margin in [0, 3, 4, 7, 8, 11] {
            assert_eq!(values[margin], 9.0, "{name} harmed a margin");
        }
        [1, 2, 5, 6, 9, 10].map(|i| values[i]).to_vec()
    }

    #[test]
    fn every_lie_does_what_it_says() {
        let f32 = |name: &str| told(name, None, ElemType::F32, 1);
        let i32 = |name: &str| told(name, None, ElemType::I32, 1);
        assert_eq!(told("scale", Some("2"), ElemType::F32, 1), [2., 4., 6., 8., 10., 12.]);
        assert_eq!(f32("zeros"), [0.; 6]);
        assert_eq!(f32("zero-one"), [1., 2., 3., 4., 5., 0.]);
        assert_eq!(i32("zero-one"), [1., 2., 3., 4., 5., 0.]);
        assert_eq!(f32("negate-one"), [1., 2., 3., 4., 5., -6.]);
        assert_eq!(f32("swap-tokens"), [3., 4., 1., 2., 5., 6.]);
        assert_eq!(i32("swap-indices"), [2., 1., 3., 4., 5., 6.]);
        assert_eq!(f32("unwritten"), [1., 2., 3., 9., 5., 6.]);
        assert!(f32("nan")[3].is_nan());
        assert_eq!(f32("flip"), [1., 2., 3., 4., 5., 6.]);
        let flipped = f32::from_bits(4f32.to_bits() ^ 1);
        assert_eq!(told("flip", None, ElemType::F32, 2)[3], f64::from(flipped));
    }
}
