// RUN: dead-code
// MATCHES: 3
// A chain that no output needs goes, its constant too.

func.func @f(%x: !dsv41.tensor<[T, 8], f32>, %y: !dsv41.tensor<[T, 8], f32>) -> (!dsv41.tensor<[T, 8], f32>) attributes {dsv41.symbols = {T = [1, 512], S = [1, 4]}} {
  %int1 = torch.constant.int 1
  %kept = torch.aten.mul.Tensor %x, %y : !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32> -> !dsv41.tensor<[T, 8], f32>
  %dead = torch.aten.mul.Tensor %x, %x : !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32> -> !dsv41.tensor<[T, 8], f32>
  %dead_too = torch.aten.add.Tensor %dead, %kept, %int1 : !dsv41.tensor<[T, 8], f32>, !dsv41.tensor<[T, 8], f32>, !torch.int -> !dsv41.tensor<[T, 8], f32>
  func.return %kept : !dsv41.tensor<[T, 8], f32>
}

// CHECK:      func.func @f
// CHECK-NEXT: %kept = torch.aten.mul.Tensor %x, %y
// CHECK-NEXT: func.return %kept
