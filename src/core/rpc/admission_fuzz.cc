// Whatever a connection begins with, and however it is cut, it gets the same verdict, and nothing outside of it is
// read.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/base/rng.h"
#include "core/rpc/admission.h"

namespace tdock::rpc {
namespace {

AdmissionRules Rules() {
  return {.token = "t", .check_health = [](absl::string_view request) -> absl::StatusOr<std::string> {
            if (request.empty()) return "\x08\x01";
            return absl::NotFoundError(std::string(request));
          }};
}

// What a peer looks at of the bytes, which end where their memory ends.
Admission::Verdict LookAt(Admission& admission, const std::string& bytes, size_t size) {
  const std::vector<char> copy(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size));
  return admission.Look(absl::string_view(copy.data(), copy.size()));
}

void Check(bool holds) {
  if (!holds) std::abort();
}

}  // namespace
}  // namespace tdock::rpc

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tdock::rpc;
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  const AdmissionRules rules = Rules();
  Admission whole(rules);
  const Admission::Verdict verdict = LookAt(whole, bytes, size);
  Check((verdict == Admission::Verdict::kAnswered) == !whole.answer().empty());
  Check(verdict != Admission::Verdict::kOpen || size < Admission::kMostBytes);
  Admission cut(rules);
  tdock::Rng cuts(size);
  for (size_t at = 0; at < size; at += 1 + cuts.Below(100)) LookAt(cut, bytes, at);
  Check(LookAt(cut, bytes, size) == verdict);
  Check(cut.answer() == whole.answer());
  return 0;
}
