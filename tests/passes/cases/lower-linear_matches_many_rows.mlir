// RUN: lower-linear
// MATCHES: 1
// Many rows: the product is a kernel of its own, which takes the packed weight.

func.func @f(%x: !dsv41.tensor<[T, 64], bf16>, %w: !dsv41.tensor<[64, 64], f8E4M3FN>, %s: !dsv41.tensor<[2, 2], ui8>) -> (!dsv41.tensor<[T, 64], bf16>) attributes {dsv41.symbols = {T = [1, 512], S = [1, 4]}} {
  %none = torch.constant.none
  %wide = dsv41.dequantize_weight %w, %s : !dsv41.tensor<[64, 64], f8E4M3FN>, !dsv41.tensor<[2, 2], ui8> -> !dsv41.tensor<[64, 64], bf16>
  %y = torch.aten.linear %x, %wide, %none : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[64, 64], bf16>, !torch.none -> !dsv41.tensor<[T, 64], bf16>
  func.return %y : !dsv41.tensor<[T, 64], bf16>
}

// CHECK: %y = dsv41.linears %x, %w, %s {groups = 1, quantize = 0
// CHECK-NOT: torch.aten.linear
