// Whatever a cache file holds, opening it and reading every sample reads nothing outside of it.
//
// An input is what lies between the header and the checksum, which no fuzzer finds by itself.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "core/base/testing/hostile_text.h"
#include "data/testing/bytes_file.h"
#include "data/token_cache.h"

namespace tdock::data {
namespace {

void Try(const std::string& bytes) {
  const auto cache = TokenCache::Open(std::make_unique<BytesFile>(bytes), "f", {1, 2});
  CheckMessage(cache.status());
  if (!cache.ok()) return;
  std::vector<int64_t> indexes(static_cast<size_t>((*cache)->size()));
  std::iota(indexes.begin(), indexes.end(), 0);
  const auto samples = (*cache)->Load(indexes);
  if (samples.size() != indexes.size()) std::abort();
  for (const auto& sample : samples) CheckMessage(sample.status());
  for (const int64_t index : indexes) (*cache)->BeginsRecord(index);
}

std::string Number(uint64_t number) { return {reinterpret_cast<const char*>(&number), sizeof number}; }

}  // namespace
}  // namespace tdock::data

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using tdock::data::Number;
  const std::string input(reinterpret_cast<const char*>(data), size);
  tdock::data::Try(input);
  std::string file = "TDTOKENS" + Number(4) + Number(1) + Number(2) + input;
  const tdock::text::ContentHash hash = tdock::text::HashOf(file);
  file += Number(hash.high) + Number(hash.low) + "TDTOKEND";
  tdock::data::Try(file);
  return 0;
}
