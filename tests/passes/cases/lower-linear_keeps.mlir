// RUN: lower-linear
// MATCHES: 0
// The product itself has another reader: it stays as it is.

func.func @f(%x: !dsv41.tensor<[T, 64], bf16>, %w: !dsv41.tensor<[64, 32], f8E4M3FN>, %s: !dsv41.tensor<[2, 1], ui8>) -> (!dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[2, T, 32], bf16>) attributes {dsv41.symbols = {T = [1, 1], S = [1, 4]}} {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %int32 = torch.constant.int 32
  %int-1 = torch.constant.int -1
  %sizes = torch.prim.ListConstruct %int2, %int32 : (!torch.int, !torch.int) -> !torch.list<int>
  %parts = torch.aten.unflatten.int %x, %int-1, %sizes : !dsv41.tensor<[T, 64], bf16>, !torch.int, !torch.list<int> -> !dsv41.tensor<[T, 2, 32], bf16>
  %wide = dsv41.dequantize_weight %w, %s : !dsv41.tensor<[64, 32], f8E4M3FN>, !dsv41.tensor<[2, 1], ui8> -> !dsv41.tensor<[64, 32], bf16>
  %own = torch.aten.unflatten.int %wide, %int0, %sizes : !dsv41.tensor<[64, 32], bf16>, !torch.int, !torch.list<int> -> !dsv41.tensor<[2, 32, 32], bf16>
  %a = torch.aten.transpose.int %parts, %int0, %int1 : !dsv41.tensor<[T, 2, 32], bf16>, !torch.int, !torch.int -> !dsv41.tensor<[2, T, 32], bf16>
  %b = torch.aten.transpose.int %own, %int1, %int2 : !dsv41.tensor<[2, 32, 32], bf16>, !torch.int, !torch.int -> !dsv41.tensor<[2, 32, 32], bf16>
  %m = torch.aten.matmul %a, %b : !dsv41.tensor<[2, T, 32], bf16>, !dsv41.tensor<[2, 32, 32], bf16> -> !dsv41.tensor<[2, T, 32], bf16>
  %c = torch.aten.transpose.int %m, %int0, %int1 : !dsv41.tensor<[2, T, 32], bf16>, !torch.int, !torch.int -> !dsv41.tensor<[T, 2, 32], bf16>
  %y = torch.aten.flatten.using_ints %c, %int1, %int-1 : !dsv41.tensor<[T, 2, 32], bf16>, !torch.int, !torch.int -> !dsv41.tensor<[T, 64], bf16>
  func.return %y, %m : !dsv41.tensor<[T, 64], bf16>, !dsv41.tensor<[2, T, 32], bf16>
}

// CHECK: %m = torch.aten.matmul %a, %b
// CHECK-NOT: dsv41.linear
