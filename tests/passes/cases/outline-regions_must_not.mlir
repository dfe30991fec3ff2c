// RUN: outline-regions
// MATCHES: 4
// Regions that differ in one constant are two functions, and the two never reach across the kernel between them.

func.func @f(%x: !dsv41.tensor<[T, 6], f32>, %w: !dsv41.tensor<[6], f32>, %slots: !dsv41.tensor<[T], si64>, %freq: !dsv41.tensor<[6], f32>) -> (!dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>) attributes {dsv41.symbols = {T = [1, 512], S = [1, 4]}} {
  %int1 = torch.constant.int 1
  %int2 = torch.constant.int 2
  %a = torch.aten.mul.Tensor %x, %x {origin = "a.py:1"} : !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32> -> !dsv41.tensor<[T, 6], f32>
  %b = torch.aten.add.Tensor %a, %w, %int1 : !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[6], f32>, !torch.int -> !dsv41.tensor<[T, 6], f32>
  %cos, %sin = dsv41.rotary %slots, %freq : !dsv41.tensor<[T], si64>, !dsv41.tensor<[6], f32> -> !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>
  %c = torch.aten.mul.Tensor %cos, %cos {origin = "c.py:1"} : !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32> -> !dsv41.tensor<[T, 6], f32>
  %d = torch.aten.add.Tensor %c, %w, %int2 : !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[6], f32>, !torch.int -> !dsv41.tensor<[T, 6], f32>
  func.return %b, %d : !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>
}

// CHECK: %b = dsv41.call @region_0(%x, %w)
// CHECK: %d = dsv41.call @region_1(%cos, %w)
// CHECK: func.func @region_0
// CHECK: torch.constant.int 1
// CHECK: func.func @region_1
// CHECK: torch.constant.int 2
