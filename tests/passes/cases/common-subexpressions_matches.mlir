// RUN: common-subexpressions
// MATCHES: 3
// Equal constants and equal products become one; where they come from does not matter.

func.func @f(%x: !dsv41.tensor<[T, 8], f32>, %y: !dsv41.tensor<[T, 8], f32>) -> (!dsv41.tensor<[T, 8], f32>) attributes {dsv41.symbols = {T = [1, 512], S = [1, 4]}} {
  %one = torch.constant.int 1
  %uno = torch.constant.int 1
  %a = torch.aten.mul.Tensor %x, %y {origin = "a.py:1"} : !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32> -> !dsv41.tensor<[T, 8], f32>
  %b = torch.aten.mul.Tensor %x, %y {origin = "b.py:2"} : !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32> -> !dsv41.tensor<[T, 8], f32>
  %c = torch.aten.add.Tensor %a, %y, %one : !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32>, !torch.int -> !dsv41.tensor<[T, 8], f32>
  %d = torch.aten.add.Tensor %b, %y, %uno : !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32>, !torch.int -> !dsv41.tensor<[T, 8], f32>
  %e = torch.aten.mul.Tensor %c, %d : !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32> -> !dsv41.tensor<[T, 8], f32>
  func.return %e : !dsv41.tensor<[T, 8], f32>
}

// CHECK:      %one = torch.constant.int 1
// CHECK-NEXT: %a = torch.aten.mul.Tensor %x, %y {origin = "a.py:1"}
// CHECK-NEXT: %c = torch.aten.add.Tensor %a, %y, %one
// CHECK-NEXT: %e = torch.aten.mul.Tensor %c, %c
// CHECK-NEXT: func.return %e
