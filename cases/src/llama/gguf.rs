//! GGUF, version 3, as far as a tiny model needs it. (No crate that writes it is small: they belong to engines.)
//!
//! ```text
//! "GGUF", u32 3, u64 tensors, u64 pairs
//! per pair:   string key, u32 kind (4 u32, 6 f32, 8 string, 9 list), value
//! per tensor: string name, u32 dimensions, u64 size of each (the fastest first), u32 type, u64 offset in the data
//! data, from the next multiple of 32 on; each tensor at a multiple of 32
//! string:     u64 length, bytes
//! list:       u32 kind (of what is in it: 4), u64 length, u32...
//! ```

/// Data begins at multiples of this.
const ALIGNMENT: usize = 32;

/// ggml's number of f32.
const F32: u32 = 0;

/// A value of a pair.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Kind 4.
    U32(u32),
    /// Kind 6.
    F32(f32),
    /// Kind 8.
    Text(&'static str),
    /// Kind 9, of kind 4.
    List(Vec<u32>),
}

/// A file on its way.
#[derive(Clone, Debug, Default)]
pub struct Gguf {
    pairs: Vec<(String, Value)>,
    tensors: Vec<(String, Vec<usize>, Vec<f32>)>,
}

impl Gguf {
    /// Adds a pair.
    pub fn pair(&mut self, key: impl Into<String>, value: Value) {
        self.pairs.push((key.into(), value));
    }

    /// Adds a tensor of f32; the first dimension is the fastest.
    pub fn tensor(&mut self, name: impl Into<String>, shape: &[usize], values: Vec<f32>) {
        debug_assert_eq!(shape.iter().product::<usize>(), values.len());
        self.tensors.push((name.into(), shape.to_vec(), values));
    }

    /// The file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.pairs.len() as u64).to_le_bytes());
        for (key, value) in &self.pairs {
            put_text(&mut out, key);
            match value {
                Value::U32(v) => put_value(&mut out, 4, &v.to_le_bytes()),
                Value::F32(v) => put_value(&mut out, 6, &v.to_le_bytes()),
                Value::Text(v) => {
                    put_value(&mut out, 8, &[]);
                    put_text(&mut out, v);
                }
                Value::List(list) => {
                    put_value(&mut out, 9, &4u32.to_le_bytes());
                    out.extend((list.len() as u64).to_le_bytes());
                    list.iter().for_each(|v| out.extend(v.to_le_bytes()));
                }
            }
        }
        let mut offset = 0;
        for (name, shape, values) in &self.tensors {
            put_text(&mut out, name);
            out.extend((shape.len() as u32).to_le_bytes());
            shape.iter().for_each(|n| out.extend((*n as u64).to_le_bytes()));
            out.extend(F32.to_le_bytes());
            out.extend((offset as u64).to_le_bytes());
            offset += (4 * values.len()).next_multiple_of(ALIGNMENT);
        }
        for (_, _, values) in &self.tensors {
            out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
            values.iter().for_each(|v| out.extend(v.to_le_bytes()));
        }
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        out
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, kind: u32, bytes: &[u8]) {
    out.extend(kind.to_le_bytes());
    out.extend(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layout() {
        let mut file = Gguf::default();
        file.pair("k", Value::Text("v"));
        file.tensor("a", &[3], vec![1.0, 2.0, 3.0]);
        file.tensor("b", &[1, 1], vec![4.0]);
        let bytes = file.bytes();
        let u64_at = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!((&bytes[..4], u64_at(8), u64_at(16)), (&b"GGUF"[..], 2, 1));
        assert_eq!((u64_at(24), bytes[32], bytes[33], u64_at(37), bytes[45]), (1, b'k', 8, 1, b'v'));
        // name, dimensions, size, type, offset
        assert_eq!((u64_at(46), bytes[54], bytes[55], u64_at(59), bytes[67], u64_at(71)), (1, b'a', 1, 3, 0, 0));
        assert_eq!((bytes[87], bytes[88], u64_at(112)), (b'b', 2, 32));
        assert_eq!(&bytes[128..132], 1.0f32.to_le_bytes());
        assert_eq!((&bytes[160..164], bytes.len()), (&4.0f32.to_le_bytes()[..], 192));
    }
}
