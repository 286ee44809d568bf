// Any lines as what list_pickled.py prints: what is put together fills its tensor, each number once, and can be
// counted.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "core/base/testing/hostile_text.h"
#include "trainer/merge/listing/listed_tensors.h"

namespace tdock::trainer {
namespace {

void Check(bool holds) {
  if (!holds) std::abort();
}

void CheckFilled(const StoredTensor& tensor) {
  uint64_t total = 1, there = 0;
  for (const int64_t size : tensor.info.shape) total *= static_cast<uint64_t>(size);
  for (const StoredBox& box : tensor.boxes) {
    uint64_t numbers = 1;
    Check(box.sizes.size() == tensor.info.shape.size() && box.strides.size() == box.sizes.size());
    for (size_t d = 0; d < box.sizes.size(); ++d) {
      Check(box.offsets[d] >= 0 && box.sizes[d] >= 0 && box.offsets[d] + box.sizes[d] <= tensor.info.shape[d]);
      numbers *= static_cast<uint64_t>(box.sizes[d]);
    }
    there += numbers;
    Check(numbers == 0 || box.span_bytes() > 0);
  }
  Check(there == total);
}

}  // namespace
}  // namespace tdock::trainer

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tdock::trainer;  // NOLINT(google-build-using-namespace)
  std::vector<ListedTensor> listed;
  for (const absl::string_view line :
       absl::StrSplit(absl::string_view(reinterpret_cast<const char*>(data), size), '\n')) {
    absl::StatusOr<ListedTensor> tensor = ParseListedTensor(line);
    tdock::CheckMessage(tensor.status());
    if (tensor.ok()) listed.push_back(*std::move(tensor));
  }
  for (const auto& put : {PutRanksTogether(listed), PutBoxesTogether(listed)}) {
    tdock::CheckMessage(put.status());
    if (!put.ok()) continue;
    for (const StoredTensor& tensor : *put) CheckFilled(tensor);
  }
  return 0;
}
