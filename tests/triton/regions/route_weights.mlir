builtin.module {
  func.func @route_weights(%arg0: !dsv41.tensor<[T, 8], f32>, %arg1: !dsv41.tensor<[T, 2], si64>) -> !dsv41.tensor<[T, 2], f32> attributes {dsv41.symbols = {T = [1, 512]}} {
    %int1 = torch.constant.int 1
    %false = torch.constant.bool false
    %gather = torch.aten.gather %arg0, %int1, %arg1, %false : !dsv41.tensor<[T, 8], f32>, !torch.int, !dsv41.tensor<[T, 2], si64>, !torch.bool -> !dsv41.tensor<[T, 2], f32>
    %int-1 = torch.constant.int -1
    %list = torch.prim.ListConstruct %int-1 : (!torch.int) -> !torch.list<int>
    %true = torch.constant.bool true
    %none = torch.constant.none
    %sum = torch.aten.sum.dim_IntList %gather, %list, %true, %none : !dsv41.tensor<[T, 2], f32>, !torch.list<int>, !torch.bool, !torch.none -> !dsv41.tensor<[T, 1], f32>
    %float1e-20 = torch.constant.float 1.0e-20
    %add = torch.aten.add.Scalar %sum, %float1e-20, %int1 : !dsv41.tensor<[T, 1], f32>, !torch.float, !torch.int -> !dsv41.tensor<[T, 1], f32>
    %div = torch.aten.div.Tensor %gather, %add : !dsv41.tensor<[T, 2], f32>, !dsv41.tensor<[T, 1], f32> -> !dsv41.tensor<[T, 2], f32>
    %float1.5 = torch.constant.float 1.5
    %mul = torch.aten.mul.Scalar %div, %float1.5 : !dsv41.tensor<[T, 2], f32>, !torch.float -> !dsv41.tensor<[T, 2], f32>
    func.return %mul : !dsv41.tensor<[T, 2], f32>
  }
}
