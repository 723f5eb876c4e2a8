//! The order of f32 keys as an order of bits: what a sort and a top-k compare by.

use conform_cases::plan::Order;

/// Bits that order as the values do, or in reverse. Both zeros are equal; a NaN lies beyond the infinity of its sign.
pub(super) fn sort_key(value: f32, order: Order) -> u32 {
    let bits = if value == 0.0 { 0 } else { value.to_bits() };
    // Negative values count down from the middle, the others up from it.
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    match order {
        Order::Asc => ascending,
        Order::Desc => !ascending,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_order_as_values_do() {
        let values = [f32::NEG_INFINITY, f32::MIN, -1.0, -1e-45, 0.0, 1e-45, 1.0, f32::MAX, f32::INFINITY, f32::NAN];
        assert!(values.windows(2).all(|w| sort_key(w[0], Order::Asc) < sort_key(w[1], Order::Asc)));
        assert!(values.windows(2).all(|w| sort_key(w[0], Order::Desc) > sort_key(w[1], Order::Desc)));
        assert_eq!(sort_key(-0.0, Order::Asc), sort_key(0.0, Order::Asc));
        assert!(sort_key(-f32::NAN, Order::Asc) < sort_key(f32::NEG_INFINITY, Order::Asc));
    }
}
