// tanh to float32 accuracy at every size: the built-in one may be 2^-24 off in absolute terms, which softcap
// multiplies, and may overflow to NaN. Polynomial: Cephes tanhf. NaN, told by its bits, comes back as it is: min() below
// would make a number of it.
fn tanh4(x: vec4<f32>) -> vec4<f32> {
    let z = x * x;
    var p = z * -5.70498872745e-3 + 2.06390887954e-2;
    p = p * z - 5.37397155531e-2;
    p = p * z + 1.33314422036e-1;
    p = p * z - 3.33332819422e-1;
    let small = x + x * (z * p);
    let size = min(abs(x), vec4(15.0));
    let large = sign(x) * (1.0 - 2.0 / (exp(2.0 * size) + 1.0));
    let capped = select(large, small, abs(x) < vec4(0.625));
    return select(capped, x, (bitcast<vec4<u32>>(x) & vec4(0x7fffffffu)) > vec4(0x7f800000u));
}
