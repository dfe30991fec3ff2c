// RUN: outline-regions
// MATCHES: 3
// Two equal regions around a kernel become two calls of one function, which has its own constant.

func.func @f(%x: !dsv41.tensor<[T, 6], f32>, %w: !dsv41.tensor<[6], f32>, %slots: !dsv41.tensor<[T], si64>, %freq: !dsv41.tensor<[6], f32>) -> (!dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>) attributes {dsv41.symbols = {T = [1, 512], S = [1, 4]}} {
  %int1 = torch.constant.int 1
  %a = torch.aten.mul.Tensor %x, %x {origin = "a.py:1"} : !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32> -> !dsv41.tensor<[T, 6], f32>
  %b = torch.aten.add.Tensor %a, %w, %int1 : !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[6], f32>, !torch.int -> !dsv41.tensor<[T, 6], f32>
  %cos, %sin = dsv41.rotary %slots, %freq : !dsv41.tensor<[T], si64>, !dsv41.tensor<[6], f32> -> !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>
  %c = torch.aten.mul.Tensor %cos, %cos {origin = "c.py:1"} : !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32> -> !dsv41.tensor<[T, 6], f32>
  %d = torch.aten.add.Tensor %c, %w, %int1 : !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[6], f32>, !torch.int -> !dsv41.tensor<[T, 6], f32>
  func.return %b, %d : !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>
}

// CHECK:      func.func @f
// CHECK:      %b = dsv41.call @region_0(%x, %w)
// CHECK-NEXT: %cos, %sin = dsv41.rotary %slots, %freq
// CHECK-NEXT: %d = dsv41.call @region_0(%cos, %w)
// CHECK-NEXT: func.return %b, %d
// CHECK:      func.func @region_0(%arg0: !dsv41.tensor<[T, 6], f32>, %arg1: !dsv41.tensor<[6], f32>)
// CHECK:      torch.aten.mul.Tensor %arg0, %arg0
// CHECK:      torch.constant.int 1
// CHECK:      torch.aten.add.Tensor
// CHECK-NOT:  func.func @region_1
