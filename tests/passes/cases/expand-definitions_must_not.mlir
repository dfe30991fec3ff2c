// RUN: expand-definitions
// MATCHES: 0
// Kernels without a definition stay whole.

func.func @f(%x: !dsv41.tensor<[T, 6], f32>, %w: !dsv41.tensor<[6], f32>, %slots: !dsv41.tensor<[T], si64>, %freq: !dsv41.tensor<[6], f32>, %tail: !dsv41.cache<"tail", owner 0, ratio 2, page 8, planar<f32 x 6>>) -> (!dsv41.cache<"tail", owner 0, ratio 2, page 8, planar<f32 x 6>>, !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>) attributes {dsv41.symbols = {T = [1, 512], S = [1, 4]}} {
  %cos, %sin = dsv41.rotary %slots, %freq : !dsv41.tensor<[T], si64>, !dsv41.tensor<[6], f32> -> !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>
  %first = dsv41.store %tail, %x, %slots {row_format = "f32", page = 8} : !dsv41.cache<"tail", owner 0, ratio 2, page 8, planar<f32 x 6>>, !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T], si64> -> !dsv41.cache<"tail", owner 0, ratio 2, page 8, planar<f32 x 6>>
  func.return %first, %cos, %sin : !dsv41.cache<"tail", owner 0, ratio 2, page 8, planar<f32 x 6>>, !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>
}

// CHECK:      %cos, %sin = dsv41.rotary
// CHECK-NEXT: %first = dsv41.store %tail
