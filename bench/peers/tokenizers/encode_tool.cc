// How long a tokenizer takes, for bench/peers/tokenizers/run.py.
//
// usage: tdock_encode MODEL FRAMES
//
// FRAMES is a file of documents: each its length in four bytes, little-endian, and so many bytes. For each line of
// standard input, all documents are encoded on this one thread, and a line says the seconds and the number of tokens.
#include <cstdint>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/clock.h"
#include "core/base/env.h"
#include "text/tokenizer.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: tdock_encode MODEL FRAMES\n";
    return 2;
  }
  const auto tokenizer = tdock::text::LoadTokenizer(tdock::Env::Real(), argv[1]);
  const auto file = tdock::Env::Real().MapFile(argv[2]);
  for (const absl::Status& status : {tokenizer.status(), file.status()}) {
    if (status.ok()) continue;
    std::cerr << status.message() << "\n";
    return 2;
  }
  const absl::string_view bytes(reinterpret_cast<const char*>((*file)->bytes().data()), (*file)->bytes().size());
  std::vector<absl::string_view> documents;
  for (size_t at = 0; at < bytes.size();) {
    uint32_t size = 0;
    std::memcpy(&size, bytes.data() + at, sizeof size);
    documents.push_back(bytes.substr(at + sizeof size, size));
    at += sizeof size + size;
  }
  for (std::string line; std::getline(std::cin, line);) {
    size_t tokens = 0;
    const absl::Time begun = tdock::Clock::Real().Now();
    for (const absl::string_view document : documents) {
      const auto ids = (*tokenizer)->Encode(document, {.spelled = tdock::text::SpelledSpecial::kParse});
      if (!ids.ok()) {
        std::cerr << ids.status().message() << "\n";
        return 1;
      }
      tokens += ids->size();
    }
    std::cout << absl::ToDoubleSeconds(tdock::Clock::Real().Now() - begun) << " " << tokens << std::endl;
  }
  return 0;
}
