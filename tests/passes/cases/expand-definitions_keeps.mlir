// RUN: expand-definitions
// MATCHES: 2
// An outlined function reads the storage it is given; a program keeps its cache and takes the storage of it.

func.func @region_0(%arg0: !dsv41.cache<"tail", owner -1, ratio 2, page 8, planar<f32 x 6>>, %arg1: !dsv41.tensor<[T], si64>) -> (!dsv41.tensor<[T, 6], f32>) attributes {dsv41.symbols = {T = [1, 512], S = [1, 4]}} {
  %rows = dsv41.load %arg0, %arg1 {row_format = "f32", page = 8, row_width = 6} : !dsv41.cache<"tail", owner -1, ratio 2, page 8, planar<f32 x 6>>, !dsv41.tensor<[T], si64> -> !dsv41.tensor<[T, 6], f32>
  func.return %rows : !dsv41.tensor<[T, 6], f32>
}
func.func @f(%x: !dsv41.tensor<[T, 6], f32>, %w: !dsv41.tensor<[6], f32>, %slots: !dsv41.tensor<[T], si64>, %freq: !dsv41.tensor<[6], f32>, %tail: !dsv41.cache<"tail", owner 0, ratio 2, page 8, planar<f32 x 6>>) -> (!dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>) attributes {dsv41.symbols = {T = [1, 512], S = [1, 4]}} {
  %own = dsv41.load %tail, %slots {row_format = "f32", page = 8, row_width = 6} : !dsv41.cache<"tail", owner 0, ratio 2, page 8, planar<f32 x 6>>, !dsv41.tensor<[T], si64> -> !dsv41.tensor<[T, 6], f32>
  %read = dsv41.call @region_0(%tail, %slots) : (!dsv41.cache<"tail", owner 0, ratio 2, page 8, planar<f32 x 6>>, !dsv41.tensor<[T], si64>) -> (!dsv41.tensor<[T, 6], f32>)
  func.return %own, %read : !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>
}

// CHECK:      func.func @region_0(%arg0: !dsv41.tensor<[S, 48], f32>, %arg1:
// CHECK-NOT:  dsv41.storage
// CHECK:      func.func @f
// CHECK:      dsv41.storage %tail
// CHECK:      %read = dsv41.call @region_0(%tail, %slots)
