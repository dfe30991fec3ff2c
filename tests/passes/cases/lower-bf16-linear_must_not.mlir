// RUN: lower-bf16-linear
// MATCHES: 0
// A product with a bias, and one of fp32 values that are no casts.

func.func @f(%x: !dsv41.tensor<[T, 64], bf16>, %w: !dsv41.tensor<[48, 64], bf16>, %bias: !dsv41.tensor<[48], bf16>, %v: !dsv41.tensor<[48, 64], f32>, %u: !dsv41.tensor<[T, 64], f32>) -> (!dsv41.tensor<[T, 48], bf16>, !dsv41.tensor<[T, 48], f32>) attributes {dsv41.symbols = {T = [1, 8], S = [1, 4]}} {
  %none = torch.constant.none
  %y = torch.aten.linear %x, %w, %bias : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[48, 64], bf16>, !dsv41.tensor<[48], bf16> -> !dsv41.tensor<[T, 48], bf16>
  %z = torch.aten.linear %u, %v, %none : !dsv41.tensor<[T, 64], f32>, !dsv41.tensor<[48, 64], f32>, !torch.none -> !dsv41.tensor<[T, 48], f32>
  func.return %y, %z : !dsv41.tensor<[T, 48], bf16>, !dsv41.tensor<[T, 48], f32>
}

// CHECK: %y = torch.aten.linear %x, %w, %bias
// CHECK: %z = torch.aten.linear %u, %v, %none
