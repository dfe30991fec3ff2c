// RUN: dead-code
// MATCHES: 0
// Every op has a use: nothing matches.

func.func @f(%x: !dsv41.tensor<[T, 8], f32>, %y: !dsv41.tensor<[T, 8], f32>) -> (!dsv41.tensor<[T, 8], f32>) attributes {dsv41.symbols = {T = [1, 512], S = [1, 4]}} {
  %a = torch.aten.mul.Tensor %x, %y : !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32> -> !dsv41.tensor<[T, 8], f32>
  %b = torch.aten.mul.Tensor %a, %a : !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32> -> !dsv41.tensor<[T, 8], f32>
  func.return %b : !dsv41.tensor<[T, 8], f32>
}

// CHECK:      %a = torch.aten.mul.Tensor %x, %y
// CHECK-NEXT: %b = torch.aten.mul.Tensor %a, %a
// CHECK-NEXT: func.return %b
