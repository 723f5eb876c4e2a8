//! From the bytes of blocks to numbers.

use half::{bf16, f16};
use pulp::NullaryFnOnce;

use super::k_quants::{q4_k, q6_k};
use super::{ElemType, mxfp4};

/// Decoding, compiled once for each set of vector instructions.
pub(super) struct Decode<'a> {
    pub(super) ty: ElemType,
    pub(super) blocks: &'a [u8],
    pub(super) out: &'a mut [f64],
}

impl NullaryFnOnce for Decode<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Decode { ty, blocks, out } = self;
        debug_assert_eq!(ty.row_bytes(out.len()), blocks.len());
        match ty {
            ElemType::F32 => decode_with(blocks, out, |b| f64::from(f32::from_le_bytes(b))),
            ElemType::F16 => decode_with(blocks, out, |b| f16::from_le_bytes(b).to_f64()),
            ElemType::Bf16 => decode_with(blocks, out, |b| bf16::from_le_bytes(b).to_f64()),
            ElemType::I32 => decode_with(blocks, out, |b| f64::from(i32::from_le_bytes(b))),
            ElemType::U16 => decode_with(blocks, out, |b| f64::from(u16::from_le_bytes(b))),
            ElemType::U32 => decode_with(blocks, out, |b| f64::from(u32::from_le_bytes(b))),
            ElemType::U64 => decode_with(blocks, out, |b| u64::from_le_bytes(b) as f64),
            ElemType::Mxfp4 => ty.each_block(blocks, out, mxfp4::decode),
            ElemType::Q4K => ty.each_block(blocks, out, q4_k::decode),
            ElemType::Q6K => ty.each_block(blocks, out, q6_k::decode),
            ElemType::Q4_0 | ElemType::Q4_1 | ElemType::Q5_0 | ElemType::Q5_1 | ElemType::Q8_0 => {
                if let Some(layout) = ty.layout() {
                    ty.each_block(
                        blocks,
                        out,
                        #[inline(always)]
                        |b, o| layout.decode(b, o),
                    );
                }
            }
            _ => out.fill(f64::NAN),
        }
    }
}

#[inline(always)]
fn decode_with<const N: usize>(bytes: &[u8], out: &mut [f64], get: impl Fn([u8; N]) -> f64) {
    let (elements, _) = bytes.as_chunks::<N>();
    for (o, b) in out.iter_mut().zip(elements) {
        *o = get(*b);
    }
}
