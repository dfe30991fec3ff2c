// An RMS norm whose width is no power of two.
func.func @norm(%x: !dsv41.tensor<[T, 24], bf16>, %w: !dsv41.tensor<[24], bf16>) -> !dsv41.tensor<[T, 24], bf16>
    attributes {dsv41.symbols = {T = [1, 512]}} {
  %int6 = torch.constant.int 6
  %int15 = torch.constant.int 15
  %int-1 = torch.constant.int -1
  %eps = torch.constant.float 1.0e-06
  %false = torch.constant.bool false
  %true = torch.constant.bool true
  %none = torch.constant.none
  %int1 = torch.constant.int 1
  %wide = torch.aten.to.dtype %x, %int6, %false, %false, %none
    : !dsv41.tensor<[T, 24], bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 24], f32>
  %square = torch.aten.square %wide : !dsv41.tensor<[T, 24], f32> -> !dsv41.tensor<[T, 24], f32>
  %dims = torch.prim.ListConstruct %int-1 : (!torch.int) -> !torch.list<int>
  %mean = torch.aten.mean.dim %square, %dims, %true, %none
    : !dsv41.tensor<[T, 24], f32>, !torch.list<int>, !torch.bool, !torch.none -> !dsv41.tensor<[T, 1], f32>
  %shifted = torch.aten.add.Scalar %mean, %eps, %int1
    : !dsv41.tensor<[T, 1], f32>, !torch.float, !torch.int -> !dsv41.tensor<[T, 1], f32>
  %factor = torch.aten.rsqrt %shifted : !dsv41.tensor<[T, 1], f32> -> !dsv41.tensor<[T, 1], f32>
  %scaled = torch.aten.mul.Tensor %wide, %factor
    : !dsv41.tensor<[T, 24], f32>, !dsv41.tensor<[T, 1], f32> -> !dsv41.tensor<[T, 24], f32>
  %weight = torch.aten.to.dtype %w, %int6, %false, %false, %none
    : !dsv41.tensor<[24], bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[24], f32>
  %product = torch.aten.mul.Tensor %weight, %scaled
    : !dsv41.tensor<[24], f32>, !dsv41.tensor<[T, 24], f32> -> !dsv41.tensor<[T, 24], f32>
  %normed = torch.aten.to.dtype %product, %int15, %false, %false, %none
    : !dsv41.tensor<[T, 24], f32>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 24], bf16>
  func.return %normed : !dsv41.tensor<[T, 24], bf16>
}
