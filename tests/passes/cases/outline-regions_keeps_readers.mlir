// RUN: outline-regions
// MATCHES: 4
// A reader of the value that a store replaces stays before the store, a reader of the new value behind it.

func.func @f(%x: !dsv41.tensor<[T, 6], f32>, %w: !dsv41.tensor<[6], f32>, %slots: !dsv41.tensor<[T], si64>, %freq: !dsv41.tensor<[6], f32>, %tail: !dsv41.cache<"tail", owner 0, ratio 2, page 8, planar<f32 x 6>>) -> (!dsv41.cache<"tail", owner 0, ratio 2, page 8, planar<f32 x 6>>, !dsv41.tensor<[T, 6], f32>) attributes {dsv41.symbols = {T = [1, 512], S = [1, 4]}} {
  %old = dsv41.load %tail, %slots {row_format = "f32", page = 8, row_width = 6} : !dsv41.cache<"tail", owner 0, ratio 2, page 8, planar<f32 x 6>>, !dsv41.tensor<[T], si64> -> !dsv41.tensor<[T, 6], f32>
  %first = dsv41.store %tail, %x, %slots {row_format = "f32", page = 8} : !dsv41.cache<"tail", owner 0, ratio 2, page 8, planar<f32 x 6>>, !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T], si64> -> !dsv41.cache<"tail", owner 0, ratio 2, page 8, planar<f32 x 6>>
  %new = dsv41.load %first, %slots {row_format = "f32", page = 8, row_width = 6} : !dsv41.cache<"tail", owner 0, ratio 2, page 8, planar<f32 x 6>>, !dsv41.tensor<[T], si64> -> !dsv41.tensor<[T, 6], f32>
  %sum = torch.aten.mul.Tensor %old, %new : !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32> -> !dsv41.tensor<[T, 6], f32>
  func.return %first, %sum : !dsv41.cache<"tail", owner 0, ratio 2, page 8, planar<f32 x 6>>, !dsv41.tensor<[T, 6], f32>
}

// CHECK:      %old = dsv41.call @region_0(%tail, %slots)
// CHECK-NEXT: %first = dsv41.store %tail, %x, %slots
// CHECK-NEXT: %sum = dsv41.call @region_1(%first, %slots, %old)
// CHECK-NEXT: func.return %first, %sum
// CHECK:      func.func @region_0(%arg0: !dsv41.cache<"tail", owner -1
