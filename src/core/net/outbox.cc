#include "core/net/outbox.h"

#include <algorithm>
#include <utility>

#include "core/base/status.h"
#include "core/tensor/checksum.h"

namespace tdock::net {
namespace {

// Size of a data message: it is still in a core's cache when it is sent, after the checksum.
constexpr uint64_t kChunkBytes = 256 << 10;
static_assert(kChunkBytes + sizeof(DataPrefix) <= kMaxDataBytes);
constexpr size_t kMaxPieces = 256;

}  // namespace

void Outbox::Add(std::string message, std::shared_ptr<const FileDescriptor> file) {
  queued_bytes_ += message.size();
  items_.push_back({.message = std::move(message), .file = std::move(file)});
}

void Outbox::AddData(uint64_t tag, uint64_t offset, std::vector<std::span<const std::byte>> pieces,
                     std::shared_ptr<const void> owner) {
  Item item{.pieces = std::move(pieces), .owner = std::move(owner), .tag = tag, .offset = offset};
  for (const auto& piece : item.pieces) item.left += piece.size();
  if (item.left == 0) return;
  queued_bytes_ += item.left;
  items_.push_back(std::move(item));
}

void Outbox::AddStriped(std::span<Outbox* const> streams, uint64_t tag, std::vector<std::span<const std::byte>> pieces,
                        const std::shared_ptr<const void>& owner) {
  uint64_t total = 0;
  for (const auto& piece : pieces) total += piece.size();
  if (total < kStripedBytes || streams.size() == 1) return streams[0]->AddData(tag, 0, std::move(pieces), owner);
  const uint64_t share = (total / streams.size() / kChunkBytes + 1) * kChunkBytes;
  auto piece = pieces.begin();
  uint64_t offset = 0;
  for (Outbox* const stream : streams) {
    std::vector<std::span<const std::byte>> part;
    uint64_t bytes = 0;
    while (piece != pieces.end() && bytes < share) {
      const auto front = piece->first(std::min<uint64_t>(piece->size(), share - bytes));
      part.push_back(front);
      bytes += front.size();
      *piece = piece->subspan(front.size());
      if (piece->empty()) ++piece;
    }
    stream->AddData(tag, offset, std::move(part), owner);
    offset += bytes;
  }
}

void Outbox::BeginChunk(Item& item, bool checked) {
  item.chunk_left = std::min(item.left, kChunkBytes);
  DataPrefix prefix{.offset = item.offset};
  item.offset += item.chunk_left;
  if (checked) {
    RunningChecksum running;
    BeginChecksum(prefix.offset, running);
    size_t at = item.at;
    for (uint64_t left = item.chunk_left, piece = item.piece; left > 0; ++piece, at = 0) {
      const auto bytes = item.pieces[piece].subspan(at);
      const auto part = bytes.first(std::min<uint64_t>(left, bytes.size()));
      running.Add(part);
      left -= part.size();
    }
    prefix.checksum = running.Value();
  }
  item.message.clear();
  AppendHeader(kData, item.tag, item.chunk_left + sizeof(prefix), &item.message);
  item.message.append(reinterpret_cast<const char*>(&prefix), sizeof(prefix));
  item.sent = 0;
}

bool Outbox::Gather(Item& item, bool first, bool checked, std::vector<iovec>& pieces) {
  if (!first && item.file != nullptr) return false;
  if (item.left > 0 && item.chunk_left == 0 && (item.message.empty() || item.sent == item.message.size())) {
    BeginChunk(item, checked);
  }
  if (item.sent < item.message.size())
    pieces.push_back({item.message.data() + item.sent, item.message.size() - item.sent});
  size_t at = item.at, piece = item.piece;
  for (uint64_t left = item.chunk_left; left > 0; ++piece, at = 0) {
    if (pieces.size() == kMaxPieces) return false;
    const auto bytes = item.pieces[piece].subspan(at);
    const size_t size = std::min<uint64_t>(left, bytes.size());
    if (size > 0) pieces.push_back({const_cast<std::byte*>(bytes.data()), size});
    left -= size;
  }
  return item.chunk_left == item.left && pieces.size() < kMaxPieces;
}

absl::Status Outbox::Send(Stream& stream, size_t most) {
  full_ = false;
  for (size_t sent_bytes = 0; !items_.empty() && sent_bytes < most;) {
    gathered_.clear();
    for (size_t i = 0; i < items_.size(); ++i) {
      if (!Gather(items_[i], i == 0, stream.needs_checksums(), gathered_)) break;
    }
    const FileDescriptor* const file = items_.front().file.get();
    TDOCK_ASSIGN_OR_RETURN(const size_t sent, stream.Write(gathered_, file));
    if (sent == 0) {
      full_ = true;
      return absl::OkStatus();
    }
    Advance(sent);
    sent_bytes += sent;
  }
  return absl::OkStatus();
}

void Outbox::Advance(size_t bytes) {
  while (bytes > 0) {
    Item& item = items_.front();
    item.file.reset();
    const bool is_data = item.left > 0;
    const size_t step = std::min(bytes, item.message.size() - item.sent);
    item.sent += step;
    bytes -= step;
    if (!is_data) queued_bytes_ -= step;
    while (bytes > 0 && item.chunk_left > 0) {
      const size_t part = std::min({static_cast<uint64_t>(bytes), item.chunk_left,
                                    static_cast<uint64_t>(item.pieces[item.piece].size() - item.at)});
      item.at += part;
      item.chunk_left -= part;
      item.left -= part;
      queued_bytes_ -= part;
      bytes -= part;
      if (item.at == item.pieces[item.piece].size()) ++item.piece, item.at = 0;
    }
    if (item.sent < item.message.size() || item.left > 0) continue;
    items_.pop_front();
  }
}

}  // namespace tdock::net
