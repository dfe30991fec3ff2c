// RUN: to-launches
// MATCHES: 2
// A call and a custom op become launches by name; attributes are the arguments of the kernel.

func.func @region_0(%arg0: !dsv41.tensor<[T, 6], f32>) -> (!dsv41.tensor<[T, 6], f32>) attributes {dsv41.symbols = {T = [1, 512], S = [1, 4]}} {
  %y = torch.aten.mul.Tensor %arg0, %arg0 : !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32> -> !dsv41.tensor<[T, 6], f32>
  func.return %y : !dsv41.tensor<[T, 6], f32>
}
func.func @f(%x: !dsv41.tensor<[T, 6], f32>, %w: !dsv41.tensor<[6], f32>, %slots: !dsv41.tensor<[T], si64>, %freq: !dsv41.tensor<[6], f32>, %tail: !dsv41.cache<"tail", owner 0, ratio 2, page 8, planar<f32 x 6>>) -> (!dsv41.cache<"tail", owner 0, ratio 2, page 8, planar<f32 x 6>>) attributes {dsv41.symbols = {T = [1, 512], S = [1, 4]}} {
  %b = dsv41.call @region_0(%x) : (!dsv41.tensor<[T, 6], f32>) -> (!dsv41.tensor<[T, 6], f32>)
  %first = dsv41.store %tail, %b, %slots {row_format = "f32", page = 8} : !dsv41.cache<"tail", owner 0, ratio 2, page 8, planar<f32 x 6>>, !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T], si64> -> !dsv41.cache<"tail", owner 0, ratio 2, page 8, planar<f32 x 6>>
  func.return %first : !dsv41.cache<"tail", owner 0, ratio 2, page 8, planar<f32 x 6>>
}

// CHECK:      %b = dsv41.launch "region_0"(%x)
// CHECK-NEXT: %first = dsv41.launch "store"(%tail, %b, %slots) {row_format = "f32", page = 8
// CHECK-NEXT: func.return %first
