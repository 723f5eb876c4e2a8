//! Distributions of generated numbers.
//!
//! Only integers and +, −, ×, ÷ and √ are used, which IEEE 754 defines to the last bit: the numbers are the same on
//! every host.

use half::f16;

use crate::stream::{below, unit};

/// The constant of recipe `const`: not a power of two, exact in f16.
pub(super) const CONST: f64 = 0.703125;

/// About normal with unit variance: the sum of four uniforms, limited to ±3.46.
pub(super) fn normal(word: u64) -> f64 {
    let sum: u64 = (0..4).map(|i| (word >> (16 * i)) & 0xffff).sum();
    (sum as f64 - 2.0 * 65535.0) / 65536.0 * 1.732_050_807_568_877_2
}

/// Uniform in (-1, 1), the sign being the lowest bit.
pub(super) fn uniform(word: u64) -> f64 {
    sign(word) * unit(word)
}

/// The lowest bit of a word as a sign: put where an f64 has it, since no processor can guess a random branch.
pub(super) fn sign(word: u64) -> f64 {
    f64::from_bits(1f64.to_bits() | word << 63)
}

/// Student's t with two degrees of freedom by its quantile function (2p−1)/√(2p(1−p)), cut at ±10⁴.
pub(super) fn heavy(word: u64) -> f64 {
    let p = ((word >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
    ((2.0 * p - 1.0) / (2.0 * p * (1.0 - p)).sqrt()).clamp(-1e4, 1e4)
}

/// 2^exponent, exactly, for exponents of normal f64 numbers.
pub(super) fn power_of_two(exponent: i64) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}

/// A value of magnitude 2^low to 2^(high + 1), every power of two equally likely.
pub(super) fn log_uniform(word: u64, low: i64, high: i64) -> f64 {
    let exponent = low + below(word << 32, (high - low + 1) as u64) as i64;
    sign(word) * (1.0 + unit(word)) * power_of_two(exponent)
}

/// Any finite f16 bit pattern.
pub(super) fn finite_f16(word: u64) -> f16 {
    let bits = (word >> 48) as u16;
    // Exponent 31 is infinity and NaN: clear its lowest bit.
    f16::from_bits(if bits & 0x7c00 == 0x7c00 { bits & !0x0400 } else { bits })
}

/// What recipe `w2049` has for ±2.
pub(super) fn wider(small: i64) -> i64 {
    if small.abs() == 2 { small / 2 * 3 } else { small }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::Stream;

    fn words() -> impl Iterator<Item = u64> {
        (0..20_000).map(|i| Stream::new(5, 5).word(i))
    }

    #[test]
    fn distributions_have_the_moments_they_claim() {
        let mean = |f: fn(u64) -> f64| words().map(f).sum::<f64>() / 20_000.0;
        let second = |f: fn(u64) -> f64| words().map(|w| f(w) * f(w)).sum::<f64>() / 20_000.0;
        approx::assert_abs_diff_eq!(mean(normal), 0.0, epsilon = 0.03);
        approx::assert_abs_diff_eq!(second(normal), 1.0, epsilon = 0.03);
        approx::assert_abs_diff_eq!(mean(uniform), 0.0, epsilon = 0.03);
        approx::assert_abs_diff_eq!(second(uniform), 1.0 / 3.0, epsilon = 0.02);
        // Quantiles of t with two degrees of freedom: P(|t| < 0.8165) = 0.5.
        let inside = words().filter(|w| heavy(*w).abs() < 0.816_496_6).count();
        approx::assert_abs_diff_eq!(inside as f64 / 20_000.0, 0.5, epsilon = 0.02);
        assert!(words().all(|w| heavy(w).is_finite()));
    }

    #[test]
    fn powers_of_two_are_exact() {
        assert_eq!(power_of_two(-149) as f32, f32::from_bits(1));
        assert_eq!(power_of_two(10), 1024.0);
        assert!(words().all(|w| (4.0..32.0).contains(&log_uniform(w, 2, 4).abs())));
    }
}
