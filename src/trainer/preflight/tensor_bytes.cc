// Shapes: B rows, H heads, T queries, S keys, D head dim.
#include "trainer/preflight/tensor_bytes.h"

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/WrapDimUtils.h>
#include <c10/core/Allocator.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

namespace tdock::trainer {

struct TensorCounts {
  static constexpr int64_t kMostInHeap = int64_t{32} << 20;  // glibc's largest M_MMAP_THRESHOLD

  int64_t live = 0, peak = 0, in_heap = 0, peak_in_heap = 0;

  void Add(int64_t bytes) {
    live += bytes;
    if (std::abs(bytes) < kMostInHeap) in_heap += bytes;
    peak = std::max(peak, live);
    peak_in_heap = std::max(peak_in_heap, in_heap);
  }
};

namespace {

struct Block {
  std::shared_ptr<TensorCounts> counts;
  int64_t bytes;
};

void FreeBlock(void* block) {
  auto* const freed = static_cast<Block*>(block);
  freed->counts->Add(-freed->bytes);
  delete freed;
}

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// What the fused kernels of attention allocate and keep: the result, its normaliser, and the mask as numbers.
struct FusedAttention final : torch::autograd::Function<FusedAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& bias) {
    const at::Tensor out_BTHD = at::empty({q.size(0), q.size(2), q.size(1), v.size(3)}, q.options());
    const at::Tensor out = out_BTHD.transpose(1, 2);
    const at::Tensor normaliser = at::empty({q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat));
    context->save_for_backward({q, k, v, bias, normaliser});
    context->saved_data["out"] = out_BTHD;
    return out;
  }
  static variable_list backward(AutogradContext* context, variable_list /*outgoing*/) {
    const variable_list saved = context->get_saved_variables();
    return {at::empty_like(saved[0]), at::empty_like(saved[1]), at::empty_like(saved[2]), at::Tensor()};
  }
};

at::Tensor Attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const std::optional<at::Tensor>& mask, double /*dropout*/, bool /*is_causal*/,
                     std::optional<double> /*scale*/, bool /*enable_gqa*/) {
  const at::Tensor bias = mask.has_value() ? at::empty(mask->sizes(), q.options()) : at::empty({0}, q.options());
  return FusedAttention::apply(q, k, v, bias);
}

// Operations that libtorch has no shapes of, except in Python.
at::Tensor IndexSelect(const at::Tensor& x, int64_t dim, const at::Tensor& index) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[static_cast<size_t>(at::maybe_wrap_dim(dim, x.dim()))] = index.numel();
  return at::empty(sizes, x.options());
}
at::Tensor EmbeddingBackward(const at::Tensor& outgoing, const at::Tensor& /*indices*/, c10::SymInt rows,
                             c10::SymInt /*padding*/, bool /*by_frequency*/) {
  return at::empty({rows.expect_int(), outgoing.size(-1)}, outgoing.options());
}

at::Tensor& WhereOut(const at::Tensor& condition, const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  const std::vector<int64_t> sizes = at::infer_size(at::infer_size(condition.sizes(), a.sizes()), b.sizes());
  out.set_(at::empty(sizes, out.options()));
  return out;
}

constexpr uint8_t kOverDefault = 1;

}  // namespace

// Gives tensors that have no data a record of their size instead.
struct TensorBytes::State final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    counts->Add(static_cast<int64_t>(bytes));
    return {nullptr, new Block{counts, static_cast<int64_t>(bytes)}, &FreeBlock, at::Device(at::kMeta)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {}

  const std::shared_ptr<TensorCounts> counts = std::make_shared<TensorCounts>();
  c10::Allocator* const before = c10::GetAllocator(at::kMeta);
  std::optional<torch::Library> kernels;
};

TensorBytes::TensorBytes(bool fused) : state_(std::make_unique<State>()) {
  c10::SetAllocator(at::kMeta, state_.get(), kOverDefault);
  state_->kernels.emplace(torch::Library::IMPL, "aten", std::nullopt, __FILE__, __LINE__);
  state_->kernels->impl("index_select", torch::dispatch(c10::DispatchKey::Meta, TORCH_FN(IndexSelect)));
  state_->kernels->impl("where.self_out", torch::dispatch(c10::DispatchKey::Meta, TORCH_FN(WhereOut)));
  state_->kernels->impl("embedding_dense_backward",
                        torch::dispatch(c10::DispatchKey::Meta, TORCH_FN(EmbeddingBackward)));
  if (!fused) return;
  for (const c10::DispatchKey key : {c10::DispatchKey::AutogradMeta, c10::DispatchKey::Meta}) {
    state_->kernels->impl("scaled_dot_product_attention", torch::dispatch(key, TORCH_FN(Attention)));
  }
}

TensorBytes::~TensorBytes() { c10::SetAllocator(at::kMeta, state_->before, kOverDefault); }

int64_t TensorBytes::live() const { return state_->counts->live; }
int64_t TensorBytes::peak() const { return state_->counts->peak; }
int64_t TensorBytes::peak_in_heap() const { return state_->counts->peak_in_heap; }

}  // namespace tdock::trainer
