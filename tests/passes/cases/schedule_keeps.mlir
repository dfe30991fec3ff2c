// RUN: schedule
// MATCHES: 6
// The rows of the window are wanted late and could be read late: but not behind the store, which writes over them.

func.func @f(%x: !dsv41.tensor<[T, 6], f32>, %window: !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, %rows: !dsv41.tensor<[T, 66], ui8>, %slots: !dsv41.tensor<[T], si64>) -> (!dsv41.tensor<[T, 6], f32>, !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>) attributes {dsv41.symbols = {T = [1, 512], S = [1, 4]}} {
  %early = dsv41.launch "load"(%window, %slots) {row_format = "fp8_e8m0", page = 8, row_width = 66} : (!dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T], si64>) -> (!dsv41.tensor<[T, 66], ui8>)
  %new = dsv41.launch "store"(%window, %rows, %slots) {row_format = "fp8_e8m0", page = 8, in_place} : (!dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>, !dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T], si64>) -> (!dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>)
  %a = dsv41.launch "widen"(%x) : (!dsv41.tensor<[T, 6], f32>) -> (!dsv41.tensor<[T, 24], f32>)
  %b = dsv41.launch "narrow"(%a) : (!dsv41.tensor<[T, 24], f32>) -> (!dsv41.tensor<[T, 6], f32>)
  %y = dsv41.launch "join"(%early, %b) : (!dsv41.tensor<[T, 66], ui8>, !dsv41.tensor<[T, 6], f32>) -> (!dsv41.tensor<[T, 6], f32>)
  func.return %y, %new : !dsv41.tensor<[T, 6], f32>, !dsv41.cache<"window", owner 0, ratio 0, page 8, planar<e4m3 x 64 | ue8m0 / 32>>
}

func.func @widen(%x: !dsv41.tensor<[T, 6], f32>) -> !dsv41.tensor<[T, 24], f32> attributes {dsv41.symbols = {T = [1, 512]}} {
  %int1 = torch.constant.int 1
  %list = torch.prim.ListConstruct %x, %x, %x, %x : (!dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], f32>) -> !torch.list<vtensor>
  %a = torch.aten.cat %list, %int1 : !torch.list<vtensor>, !torch.int -> !dsv41.tensor<[T, 24], f32>
  func.return %a : !dsv41.tensor<[T, 24], f32>
}

func.func @narrow(%x: !dsv41.tensor<[T, 24], f32>) -> !dsv41.tensor<[T, 6], f32> attributes {dsv41.symbols = {T = [1, 512]}} {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int6 = torch.constant.int 6
  %a = torch.aten.slice.Tensor %x, %int1, %int0, %int6, %int1 : !dsv41.tensor<[T, 24], f32>, !torch.int, !torch.int, !torch.int, !torch.int -> !dsv41.tensor<[T, 6], f32>
  func.return %a : !dsv41.tensor<[T, 6], f32>
}

func.func @join(%rows: !dsv41.tensor<[T, 66], ui8>, %b: !dsv41.tensor<[T, 6], f32>) -> !dsv41.tensor<[T, 6], f32> attributes {dsv41.symbols = {T = [1, 512]}} {
  %int0 = torch.constant.int 0
  %int1 = torch.constant.int 1
  %int6 = torch.constant.int 6
  %a = torch.aten.slice.Tensor %rows, %int1, %int0, %int6, %int1 : !dsv41.tensor<[T, 66], ui8>, !torch.int, !torch.int, !torch.int, !torch.int -> !dsv41.tensor<[T, 6], ui8>
  %y = torch.aten.add.Tensor %b, %a, %int1 : !dsv41.tensor<[T, 6], f32>, !dsv41.tensor<[T, 6], ui8>, !torch.int -> !dsv41.tensor<[T, 6], f32>
  func.return %y : !dsv41.tensor<[T, 6], f32>
}

// CHECK:      %b = dsv41.launch "narrow"(%a)
// CHECK-NEXT: %early = dsv41.launch "load"(%window, %slots)
// CHECK:      %new = dsv41.launch "store"(%window, %rows, %slots)
