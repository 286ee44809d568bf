#include "trainer/rollout_servers/weight_check.h"

#include <ATen/ATen.h>
#include <openssl/evp.h>

#include <algorithm>
#include <iterator>
#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"
#include "model/decoder/weights.h"
#include "model/files/weight_files.h"
#include "model/tensor_torch/convert.h"
#include "trainer/stages/guard.h"

namespace tdock::trainer {
namespace {

constexpr uint64_t kMaxHashedBytes = uint64_t{1} << 30;
constexpr int64_t kConverted = 1 << 20;  // numbers at once
constexpr size_t kSha256Digits = 64;
constexpr size_t kMaxNamed = 3;

absl::StatusOr<WeightDigests> DigestsOf(Env& env, const std::string& folder, DType dtype) {
  TDOCK_ASSIGN_OR_RETURN(const model::WeightFiles files, model::WeightFiles::Open(env, folder));
  TDOCK_ASSIGN_OR_RETURN(const at::ScalarType type, ToScalarType(dtype));
  std::vector<std::string> names = files.names();
  const auto bytes_of = [&](const std::string& name) { return files.Find(name)->Info(name).bytes(); };
  std::stable_sort(names.begin(), names.end(),
                   [&](const std::string& a, const std::string& b) { return bytes_of(a) < bytes_of(b); });
  WeightDigests digests;
  uint64_t hashed = 0;
  for (const std::string& name : names) {
    hashed += bytes_of(name);
    if (hashed > kMaxHashedBytes && !digests.empty()) break;
    TDOCK_ASSIGN_OR_RETURN(const at::Tensor weight, model::ReadTensor(*files.Find(name), name));
    TDOCK_ASSIGN_OR_RETURN(digests[name], Sha256Of(weight, type));
  }
  return digests;
}

// The names of weights that have the same digest at every rank as here, and how many names both know.
struct Equal {
  std::set<std::string> names = {};
  size_t known = 0;
};
Equal EqualOf(const Digests& said, const WeightDigests& sent) {
  Equal equal;
  for (const auto& [name, ranks] : said) {
    const auto own = sent.find(name);
    if (own == sent.end()) continue;
    ++equal.known;
    const bool is_equal = std::all_of(ranks.begin(), ranks.end(),
                                      [&](const std::string& digest) { return absl::StartsWith(own->second, digest); });
    if (is_equal) equal.names.insert(name);
  }
  return equal;
}

bool IsSha256(const Digests& said) {
  return std::all_of(said.begin(), said.end(), [](const auto& one) {
    return std::all_of(one.second.begin(), one.second.end(),
                       [](const std::string& digest) { return digest.size() == kSha256Digits; });
  });
}

std::string Named(const std::vector<std::string>& names) {
  const size_t shown = std::min(names.size(), kMaxNamed);
  return absl::StrCat(absl::StrJoin(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                      names.size() > shown ? absl::StrCat(" and ", names.size() - shown, " more") : "");
}

}  // namespace

absl::StatusOr<std::string> Sha256Of(const at::Tensor& weight, at::ScalarType type) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> hash(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  bool is_ok = hash != nullptr && EVP_DigestInit_ex(hash.get(), EVP_sha256(), nullptr) == 1;
  for (const at::Tensor& piece : weight.flatten().split(kConverted)) {
    const at::Tensor converted = piece.to(type);
    is_ok = is_ok && EVP_DigestUpdate(hash.get(), converted.const_data_ptr(), converted.nbytes()) == 1;
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest = {};
  unsigned int size = 0;
  is_ok = is_ok && EVP_DigestFinal_ex(hash.get(), digest.data(), &size) == 1;
  if (!is_ok) return absl::InternalError("OpenSSL has no SHA-256");
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest.data()), size));
}

const absl::StatusOr<WeightDigests>& FolderDigests::In(DType dtype) {
  const auto at = static_cast<size_t>(std::find(kDTypes.begin(), kDTypes.end(), dtype) - kDTypes.begin());
  TDOCK_CHECK(at < entries_.size(), "servers compute in such a dtype");
  Entry& entry = entries_[at];
  std::call_once(entry.once, [&] { entry.digests = Guarded([&] { return DigestsOf(env_, folder_, dtype); }); });
  return entry.digests;
}

absl::Status WeightCheck::Compare(const Digests& said, FolderDigests& sent) {
  Equal equal;
  for (const DType dtype : std::vector<DType>(dtypes_)) {
    const absl::StatusOr<WeightDigests>& own = sent.In(dtype);
    TDOCK_RETURN_IF_ERROR(own.status());
    equal = EqualOf(said, *own);
    if (equal.names.empty()) continue;
    dtypes_ = {dtype};
    break;
  }
  if (comparable_.empty() && equal.names.empty() && equal.known > 0 && IsSha256(said)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "its digests of all ", equal.known,
        " weights that both name differ from those of the folder: it did not read it, or has another model"));
  }
  std::vector<std::string> wrong;
  std::set_difference(comparable_.begin(), comparable_.end(), equal.names.begin(), equal.names.end(),
                      std::back_inserter(wrong));
  if (!wrong.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("its digests of ", wrong.size(), " of ", comparable_.size(),
                                                      " weights differ from those of the folder: ", Named(wrong)));
  }
  const absl::StatusOr<WeightDigests>& coarse = sent.In(DType::kBF16);
  TDOCK_RETURN_IF_ERROR(coarse.status());
  if (!said_.empty() && said == said_ && *coarse != sent_) {
    return absl::FailedPreconditionError(absl::StrCat("its digests of all ", said.size(),
                                                      " weights are as before, and those of the folder have changed"));
  }
  if (equal.names.empty()) dtypes_.clear();  // the server hashes, or holds, weights in another way
  comparable_ = std::move(equal.names);
  said_ = said;
  sent_ = *coarse;
  return absl::OkStatus();
}

}  // namespace tdock::trainer
