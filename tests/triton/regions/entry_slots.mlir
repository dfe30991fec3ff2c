builtin.module {
  func.func @entry_slots(%arg0: !dsv41.tensor<[T, 8], si32>, %arg1: !dsv41.tensor<[T, 1], si64>, %arg2: !dsv41.tensor<[B, P], si64>) -> !dsv41.tensor<[T, 8], si32> attributes {dsv41.symbols = {T = [1, 512], B = [1, 64], P = [1, 12]}} {
    %int4 = torch.constant.int 4
    %false = torch.constant.bool false
    %none = torch.constant.none
    %to = torch.aten.to.dtype %arg0, %int4, %false, %false, %none : !dsv41.tensor<[T, 8], si32>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 8], si64>
    %int0 = torch.constant.int 0
    %clamp = torch.aten.clamp %to, %int0, %none : !dsv41.tensor<[T, 8], si64>, !torch.int, !torch.none -> !dsv41.tensor<[T, 8], si64>
    %int8 = torch.constant.int 8
    %floor_divide = torch.aten.floor_divide.Scalar %clamp, %int8 : !dsv41.tensor<[T, 8], si64>, !torch.int -> !dsv41.tensor<[T, 8], si64>
    %int1 = torch.constant.int 1
    %add = torch.aten.add.Tensor %arg1, %floor_divide, %int1 : !dsv41.tensor<[T, 1], si64>, !dsv41.tensor<[T, 8], si64>, !torch.int -> !dsv41.tensor<[T, 8], si64>
    %int-1 = torch.constant.int -1
    %flatten = torch.aten.flatten.using_ints %arg2, %int0, %int-1 : !dsv41.tensor<[B, P], si64>, !torch.int, !torch.int -> !dsv41.tensor<[B*P], si64>
    %list = torch.prim.ListConstruct %add : (!dsv41.tensor<[T, 8], si64>) -> !torch.list<vtensor>
    %index = torch.aten.index.Tensor_hacked_twin %flatten, %list : !dsv41.tensor<[B*P], si64>, !torch.list<vtensor> -> !dsv41.tensor<[T, 8], si64>
    %ge = torch.aten.ge.Scalar %to, %int0 : !dsv41.tensor<[T, 8], si64>, !torch.int -> !dsv41.tensor<[T, 8], i1>
    %ge_1 = torch.aten.ge.Scalar %index, %int0 : !dsv41.tensor<[T, 8], si64>, !torch.int -> !dsv41.tensor<[T, 8], i1>
    %and = torch.aten.bitwise_and.Tensor %ge, %ge_1 : !dsv41.tensor<[T, 8], i1>, !dsv41.tensor<[T, 8], i1> -> !dsv41.tensor<[T, 8], i1>
    %mul = torch.aten.mul.Scalar %index, %int8 : !dsv41.tensor<[T, 8], si64>, !torch.int -> !dsv41.tensor<[T, 8], si64>
    %remainder = torch.aten.remainder.Scalar %clamp, %int8 : !dsv41.tensor<[T, 8], si64>, !torch.int -> !dsv41.tensor<[T, 8], si64>
    %add_1 = torch.aten.add.Tensor %mul, %remainder, %int1 : !dsv41.tensor<[T, 8], si64>, !dsv41.tensor<[T, 8], si64>, !torch.int -> !dsv41.tensor<[T, 8], si64>
    %where = torch.aten.where.ScalarOther %and, %add_1, %int-1 : !dsv41.tensor<[T, 8], i1>, !dsv41.tensor<[T, 8], si64>, !torch.int -> !dsv41.tensor<[T, 8], si64>
    %int3 = torch.constant.int 3
    %to_1 = torch.aten.to.dtype %where, %int3, %false, %false, %none : !dsv41.tensor<[T, 8], si64>, !torch.int, !torch.bool, !torch.bool, !torch.none -> !dsv41.tensor<[T, 8], si32>
    func.return %to_1 : !dsv41.tensor<[T, 8], si32>
  }
}
