// RUN: lower-linear
// MATCHES: 0
// A product with a bias, and one with a bf16 weight, are other products.

func.func @f(%x: !dsv41.tensor<[T, 64], bf16>, %w: !dsv41.tensor<[64, 64], f8E4M3FN>, %s: !dsv41.tensor<[2, 2], ui8>, %v: !dsv41.tensor<[64, 64], bf16>, %bias: !dsv41.tensor<[64], bf16>) -> (!dsv41.tensor<[T, 64], bf16>) attributes {dsv41.symbols = {T = [1, 1], S = [1, 4]}} {
  %none = torch.constant.none
  %wide = dsv41.dequantize_weight %w, %s : !dsv41.tensor<[64, 64], f8E4M3FN>, !dsv41.tensor<[2, 2], ui8> -> !dsv41.tensor<[64, 64], bf16>
  %y = torch.aten.linear %x, %wide, %bias : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[64, 64], bf16>, !dsv41.tensor<[64], bf16> -> !dsv41.tensor<[T, 64], bf16>
  %plain = torch.constant.none
  %z = torch.aten.linear %y, %v, %none : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[64, 64], bf16>, !torch.none -> !dsv41.tensor<[T, 64], bf16>
  func.return %z : !dsv41.tensor<[T, 64], bf16>
}

// CHECK: %y = torch.aten.linear %x, %wide, %bias
// CHECK: %z = torch.aten.linear %y, %v, %none
