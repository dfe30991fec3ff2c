// RUN: lower-router
// MATCHES: 0
// Scores without a root.

func.func @f(%logits: !dsv41.tensor<[T, 12], f32>, %bias: !dsv41.tensor<[12], f32>) -> (!dsv41.tensor<[T, 3], si64>, !dsv41.tensor<[T, 3], f32>) attributes {dsv41.symbols = {T = [1, 512]}} {
  %int1 = torch.constant.int 1
  %int20 = torch.constant.int 20
  %softplus = torch.aten.softplus %logits, %int1, %int20 : !dsv41.tensor<[T, 12], f32>, !torch.int, !torch.int -> !dsv41.tensor<[T, 12], f32>
  %biased = torch.aten.add.Tensor %softplus, %bias, %int1 : !dsv41.tensor<[T, 12], f32>, !dsv41.tensor<[12], f32>, !torch.int -> !dsv41.tensor<[T, 12], f32>
  %ids = dsv41.select_experts %biased {k = 3} : !dsv41.tensor<[T, 12], f32> -> !dsv41.tensor<[T, 3], si64>
  %false = torch.constant.bool false
  %chosen = torch.aten.gather %softplus, %int1, %ids, %false : !dsv41.tensor<[T, 12], f32>, !torch.int, !dsv41.tensor<[T, 3], si64>, !torch.bool -> !dsv41.tensor<[T, 3], f32>
  %int-1 = torch.constant.int -1
  %list = torch.prim.ListConstruct %int-1 : (!torch.int) -> !torch.list<int>
  %true = torch.constant.bool true
  %none = torch.constant.none
  %sum = torch.aten.sum.dim_IntList %chosen, %list, %true, %none : !dsv41.tensor<[T, 3], f32>, !torch.list<int>, !torch.bool, !torch.none -> !dsv41.tensor<[T, 1], f32>
  %float1e-20 = torch.constant.float 1.0e-20
  %total = torch.aten.add.Scalar %sum, %float1e-20, %int1 : !dsv41.tensor<[T, 1], f32>, !torch.float, !torch.int -> !dsv41.tensor<[T, 1], f32>
  %div = torch.aten.div.Tensor %chosen, %total : !dsv41.tensor<[T, 3], f32>, !dsv41.tensor<[T, 1], f32> -> !dsv41.tensor<[T, 3], f32>
  %float1.5 = torch.constant.float 1.5
  %weights = torch.aten.mul.Scalar %div, %float1.5 : !dsv41.tensor<[T, 3], f32>, !torch.float -> !dsv41.tensor<[T, 3], f32>
  func.return %ids, %weights : !dsv41.tensor<[T, 3], si64>, !dsv41.tensor<[T, 3], f32>
}

// CHECK: %ids = dsv41.select_experts %biased
// CHECK: %weights = torch.aten.mul.Scalar %div
