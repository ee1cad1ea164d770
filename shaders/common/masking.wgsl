// Which keys a query row sees, shared by every pass: first <= key < end, and the key's bit in key_mask.
// Non-causal problems set lo_offset and hi_offset so far out that the ends are those of the keys.

fn row_first(row: u32) -> u32 {
    return u32(clamp(i32(row) + params.lo_offset, 0, i32(row_end(row))));
}

fn row_end(row: u32) -> u32 {
    return u32(clamp(i32(row) + params.hi_offset, 0, i32(params.seq_k)));
}
