// RUN: lower-bf16-linear
// MATCHES: 1
// The cast has another reader: it stays for it.

func.func @f(%x: !dsv41.tensor<[T, 64], bf16>, %w: !dsv41.tensor<[48, 64], bf16>) -> (!dsv41.tensor<[T, 48], f32>, !dsv41.tensor<[T, 64], f32>) attributes {dsv41.symbols = {T = [1, 8], S = [1, 4]}} {
  %none = torch.constant.none
  %false = torch.constant.bool false
  %int6 = torch.constant.int 6
  %a = torch.aten.to.dtype %x, %int6, %false, %false, %none : !dsv41.tensor<[T, 64], bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 64], f32>
  %b = torch.aten.to.dtype %w, %int6, %false, %false, %none : !dsv41.tensor<[48, 64], bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[48, 64], f32>
  %z = torch.aten.linear %a, %b, %none : !dsv41.tensor<[T, 64], f32>, !dsv41.tensor<[48, 64], f32>, !torch.none -> !dsv41.tensor<[T, 48], f32>
  func.return %z, %a : !dsv41.tensor<[T, 48], f32>, !dsv41.tensor<[T, 64], f32>
}

// CHECK: %a = torch.aten.to.dtype %x
// CHECK: %z = dsv41.linear_bf16 %x, %w {wide = 1
// CHECK: func.return %z, %a
