// The square of x, with a product that nobody needs.
builtin.module {
  func.func @step(%x: !dsv41.tensor<[T, 4], f32>) -> !dsv41.tensor<[T, 4], f32> attributes {dsv41.outputs = ["y"], dsv41.symbols = {T = [1, 8]}} {
    %unused = torch.aten.mul.Tensor %x, %x : !dsv41.tensor<[T, 4], f32>, !dsv41.tensor<[T, 4], f32> -> !dsv41.tensor<[T, 4], f32>
    %y = torch.aten.mul.Tensor %x, %x : !dsv41.tensor<[T, 4], f32>, !dsv41.tensor<[T, 4], f32> -> !dsv41.tensor<[T, 4], f32>
    func.return %y : !dsv41.tensor<[T, 4], f32>
  }
}
