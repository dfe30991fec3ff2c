// RUN: delay-mhc
// MATCHES: 0
// A weighted sum and a norm without a predictor and an expand are no site.

func.func @f(%h: !dsv41.tensor<[T, 2, 32], bf16>, %pre: !dsv41.tensor<[T, 2], f32>, %weight: !dsv41.tensor<[32], bf16>) -> !dsv41.tensor<[T, 32], bf16> attributes {dsv41.symbols = {T = [1, 512]}, dsv41.outputs = ["result0"]} {
  %int-1 = torch.constant.int -1
  %unsqueeze = torch.aten.unsqueeze %pre, %int-1 : !dsv41.tensor<[T, 2], f32>, !torch.int -> !dsv41.tensor<[T, 2, 1], f32>
  %int6 = torch.constant.int 6
  %false = torch.constant.bool false
  %none = torch.constant.none
  %to = torch.aten.to.dtype %h, %int6, %false, %false, %none : !dsv41.tensor<[T, 2, 32], bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 2, 32], f32>
  %mul = torch.aten.mul.Tensor %unsqueeze, %to : !dsv41.tensor<[T, 2, 1], f32>, !dsv41.tensor<[T, 2, 32], f32> -> !dsv41.tensor<[T, 2, 32], f32>
  %int1 = torch.constant.int 1
  %int0 = torch.constant.int 0
  %select = torch.aten.select.int %mul, %int1, %int0 : !dsv41.tensor<[T, 2, 32], f32>, !torch.int, !torch.int -> !dsv41.tensor<[T, 32], f32>
  %select_1 = torch.aten.select.int %mul, %int1, %int1 : !dsv41.tensor<[T, 2, 32], f32>, !torch.int, !torch.int -> !dsv41.tensor<[T, 32], f32>
  %add = torch.aten.add.Tensor %select, %select_1, %int1 : !dsv41.tensor<[T, 32], f32>, !dsv41.tensor<[T, 32], f32>, !torch.int -> !dsv41.tensor<[T, 32], f32>
  %unsqueeze_1 = torch.aten.unsqueeze %add, %int1 : !dsv41.tensor<[T, 32], f32>, !torch.int -> !dsv41.tensor<[T, 1, 32], f32>
  %squeeze = torch.aten.squeeze.dim %unsqueeze_1, %int1 : !dsv41.tensor<[T, 1, 32], f32>, !torch.int -> !dsv41.tensor<[T, 32], f32>
  %int15 = torch.constant.int 15
  %to_1 = torch.aten.to.dtype %squeeze, %int15, %false, %false, %none : !dsv41.tensor<[T, 32], f32>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 32], bf16>
  %to_2 = torch.aten.to.dtype %to_1, %int6, %false, %false, %none : !dsv41.tensor<[T, 32], bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 32], f32>
  %square = torch.aten.square %to_2 : !dsv41.tensor<[T, 32], f32> -> !dsv41.tensor<[T, 32], f32>
  %list = torch.prim.ListConstruct %int-1 : (!torch.int) -> !torch.list<int>
  %true = torch.constant.bool true
  %mean = torch.aten.mean.dim %square, %list, %true, %none : !dsv41.tensor<[T, 32], f32>, !torch.list<int>, !torch.bool, !torch.none -> !dsv41.tensor<[T, 1], f32>
  %float1e-20 = torch.constant.float 1.0e-20
  %add_1 = torch.aten.add.Scalar %mean, %float1e-20, %int1 : !dsv41.tensor<[T, 1], f32>, !torch.float, !torch.int -> !dsv41.tensor<[T, 1], f32>
  %rsqrt = torch.aten.rsqrt %add_1 : !dsv41.tensor<[T, 1], f32> -> !dsv41.tensor<[T, 1], f32>
  %mul_1 = torch.aten.mul.Tensor %to_2, %rsqrt : !dsv41.tensor<[T, 32], f32>, !dsv41.tensor<[T, 1], f32> -> !dsv41.tensor<[T, 32], f32>
  %to_3 = torch.aten.to.dtype %weight, %int6, %false, %false, %none : !dsv41.tensor<[32], bf16>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[32], f32>
  %mul_2 = torch.aten.mul.Tensor %to_3, %mul_1 : !dsv41.tensor<[32], f32>, !dsv41.tensor<[T, 32], f32> -> !dsv41.tensor<[T, 32], f32>
  %to_4 = torch.aten.to.dtype %mul_2, %int15, %false, %false, %none : !dsv41.tensor<[T, 32], f32>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 32], bf16>
  func.return %to_4 : !dsv41.tensor<[T, 32], bf16>
}

// CHECK: %rsqrt = torch.aten.rsqrt
// CHECK-NOT: dsv41.mhc
