// RUN: to-launches
// MATCHES: 0
// Aten ops, in the program or in outlined functions, and weights are no launches.

func.func @region_0(%arg0: !dsv41.tensor<[T, 6], f32>) -> (!dsv41.tensor<[T, 6], f32>) attributes {dsv41.symbols = {T = [1, 512], S = [1, 4]}} {
  %y = torch.aten.mul.Tensor %arg0, %arg0 : !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32> -> !dsv41.tensor<[T, 6], f32>
  func.return %y : !dsv41.tensor<[T, 6], f32>
}
func.func @f(%x: !dsv41.tensor<[T, 6], f32>, %w: !dsv41.tensor<[6], f32>, %slots: !dsv41.tensor<[T], si64>, %freq: !dsv41.tensor<[6], f32>, %tail: !dsv41.cache<"tail", owner 0, ratio 2, page 8, planar<f32 x 6>>) -> (!dsv41.tensor<[T, 6], f32>) attributes {dsv41.symbols = {T = [1, 512], S = [1, 4]}} {
  %scale = dsv41.weight {name = "a.scale", source = "checkpoint"} : !dsv41.tensor<[6], f32>
  %b = torch.aten.mul.Tensor %x, %scale : !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[6], f32> -> !dsv41.tensor<[T, 6], f32>
  func.return %b : !dsv41.tensor<[T, 6], f32>
}

// CHECK:      %scale = dsv41.weight
// CHECK-NEXT: %b = torch.aten.mul.Tensor %x, %scale
