// RUN: plan-memory{rows=16}
// MATCHES: 3
// Rows of %x are cut; any row of %table may be read, so it is not; only %y is put together from the tiles.

func.func @f(%x: !dsv41.tensor<[T, 6], f32>, %table: !dsv41.tensor<[T, 6], f32>, %at: !dsv41.tensor<[T], si64>) -> !dsv41.tensor<[T, 6], f32> attributes {dsv41.symbols = {T = [1, 512]}} {
  %a = dsv41.launch "double"(%x) : (!dsv41.tensor<[T, 6], f32>) -> (!dsv41.tensor<[T, 6], f32>)
  %y = dsv41.launch "take"(%a, %table, %at) : (!dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T], si64>) -> (!dsv41.tensor<[T, 6], f32>)
  func.return %y : !dsv41.tensor<[T, 6], f32>
}

func.func @double(%x: !dsv41.tensor<[T, 6], f32>) -> !dsv41.tensor<[T, 6], f32> attributes {dsv41.symbols = {T = [1, 512]}} {
  %int1 = torch.constant.int 1
  %a = torch.aten.add.Tensor %x, %x, %int1 : !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>, !torch.int -> !dsv41.tensor<[T, 6], f32>
  func.return %a : !dsv41.tensor<[T, 6], f32>
}

func.func @take(%a: !dsv41.tensor<[T, 6], f32>, %table: !dsv41.tensor<[T, 6], f32>, %at: !dsv41.tensor<[T], si64>) -> !dsv41.tensor<[T, 6], f32> attributes {dsv41.symbols = {T = [1, 512]}} {
  %list = torch.prim.ListConstruct %at : (!dsv41.tensor<[T], si64>) -> !torch.list<vtensor>
  %row = torch.aten.index.Tensor_hacked_twin %table, %list : !dsv41.tensor<[T, 6], f32>, !torch.list<vtensor> -> !dsv41.tensor<[T, 6], f32>
  %y = torch.aten.mul.Tensor %a, %row : !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32> -> !dsv41.tensor<[T, 6], f32>
  func.return %y : !dsv41.tensor<[T, 6], f32>
}

// CHECK: %a = dsv41.launch "double"(%x) {tile = 0, tile_rows = 16, cut = [0]}
// CHECK: %y = dsv41.launch "take"(%a, %table, %at) {tile = 0, tile_rows = 16, cut = [0, 2]}
