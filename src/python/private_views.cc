#include "python/private_views.h"

#include <atomic>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "dock/store/page_sizes.h"
#include "dock/table/rows_data.h"
#include "python/gil.h"

namespace nb = nanobind;

namespace tdock::python {
namespace {

// Below this size, to copy costs less than to map.
constexpr size_t kLeastBytes = size_t{256} << 10;

// Writes what is there, unless another thread writes something else meanwhile. (A compiler may leave out an addition of
// nothing, but not an exchange.)
void CopyPage(std::byte& of) {
  const std::atomic_ref<std::byte> byte(of);
  std::byte now = byte.load();
  byte.compare_exchange_strong(now, now);
}

// Created and destroyed under the GIL, which guards the list of them. In a forked process only the mapping goes.
class View {
 public:
  View(const SharedRows& rows, Buffer memory);
  ~View();
  View(const View&) = delete;
  View& operator=(const View&) = delete;

  std::byte* data() { return memory_.mutable_data(); }
  // Copies what is not copied yet. Other threads may write to it meanwhile.
  void Detach();

 private:
  // Released after the memory.
  SharedRows rows_;
  Buffer memory_;
};

struct Views {
  absl::flat_hash_set<View*> live;
  int forks = 0;
};

// Never destroyed: views may outlast the module.
Views& TheViews() {
  static auto* const views = new Views();
  return *views;
}

View::View(const SharedRows& rows, Buffer memory) : rows_(rows), memory_(std::move(memory)) {
  TheViews().live.insert(this);
}

View::~View() { TheViews().live.erase(this); }

void View::Detach() {
  for (size_t at = 0; at < memory_.size(); at += dock::kPageBytes) CopyPage(data()[at]);
  CopyPage(data()[memory_.size() - 1]);
  rows_.reset();
}

}  // namespace

std::optional<PrivateView> MakePrivateView(const SharedRows& rows, std::span<const std::byte> cells) {
  const LookPrivately& look = Rows::Data::Of(*rows).look_privately;
  if (look == nullptr || cells.size() < kLeastBytes || TheViews().forks > 0) return std::nullopt;
  // It is in no list yet, but a process that is forked meanwhile has nothing that could show it either.
  Buffer memory;
  {
    const GilRelease release;
    memory = look(cells);
  }
  if (memory.mutable_data() == nullptr) return std::nullopt;
  auto view = std::make_unique<View>(rows, std::move(memory));
  std::byte* const data = view->data();
  nb::object owner = nb::capsule(view.get(), [](void* kept) noexcept { delete static_cast<View*>(kept); });
  (void)view.release();
  return PrivateView{.data = data, .owner = std::move(owner)};
}

void BeginForkOfPrivateViews() {
  Views& views = TheViews();
  ++views.forks;
  // They have no rows from now on, and are views no more.
  for (View* const view : views.live) view->Detach();
  views.live.clear();
}

void EndForkOfPrivateViews() { --TheViews().forks; }

// Other forks that had begun are those of threads that it does not have.
void EndForkOfPrivateViewsInChild() { TheViews().forks = 0; }

}  // namespace tdock::python
