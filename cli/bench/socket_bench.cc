#include "cli/bench/socket_bench.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/bench/machine_roofs.h"
#include "common/base/status_macros.h"

namespace tandem::cli {
namespace {

// Bytes of one system call, and pieces of it, as the largest frame of the KV plane has them.
constexpr size_t kCallBytesMax = 1 << 20;
constexpr size_t kCallPiecesMax = 256;

struct SocketPair {
  transfer::OwnedDescriptor first, second;
};

absl::StatusOr<SocketPair> ConnectOverLoopback() {
  const auto error = [](absl::string_view call) {
    return absl::UnavailableError(absl::StrCat(call, ": ", std::strerror(errno)));
  };
  const transfer::OwnedDescriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  SocketPair pair;
  pair.first = transfer::OwnedDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (listener.get() < 0 || pair.first.get() < 0) return error("socket");
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener.get(), generic, bytes) != 0) return error("bind");
  if (::listen(listener.get(), 1) != 0) return error("listen");
  if (::getsockname(listener.get(), generic, &bytes) != 0) return error("getsockname");
  if (::connect(pair.first.get(), generic, bytes) != 0) return error("connect");
  pair.second =
      transfer::OwnedDescriptor(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (pair.second.get() < 0) return error("accept");
  return pair;
}

// Moves the blocks in `order` through the socket, the whole of them. False when it breaks.
bool MoveBlocks(int fd, const kv::BlockArena& arena, const std::vector<BlockId>& order,
                bool sending) {
  std::vector<iovec> pieces;
  size_t next = 0, bytes = 0;
  while (next < order.size() || bytes > 0) {
    while (next < order.size() && bytes < kCallBytesMax && pieces.size() < kCallPiecesMax) {
      const absl::Span<std::byte> block = arena.Block(0, order[next++]);
      pieces.push_back({block.data(), block.size()});
      bytes += block.size();
    }
    const int count = static_cast<int>(pieces.size());
    const ssize_t moved =
        sending ? ::writev(fd, pieces.data(), count) : ::readv(fd, pieces.data(), count);
    if (moved <= 0) return false;
    bytes -= static_cast<size_t>(moved);
    size_t rest = static_cast<size_t>(moved), whole = 0;
    while (whole < pieces.size() && rest >= pieces[whole].iov_len) rest -= pieces[whole++].iov_len;
    pieces.erase(pieces.begin(), pieces.begin() + static_cast<ptrdiff_t>(whole));
    if (rest > 0) {
      pieces[0].iov_base = static_cast<std::byte*>(pieces[0].iov_base) + rest;
      pieces[0].iov_len -= rest;
    }
  }
  return true;
}

absl::StatusOr<std::unique_ptr<kv::BlockArena>> TouchedArena(const KvBenchPlan& plan) {
  ASSIGN_OR_RETURN(auto arena,
                   kv::BlockArena::Create(
                       {.num_layers = 1, .block_tokens = 16, .layer_block_bytes = plan.block_bytes},
                       plan.num_blocks));
  for (int32_t i = 0; i < plan.num_blocks; ++i) {
    const absl::Span<std::byte> block = arena->Block(0, BlockId(i));
    std::memset(block.data(), i + 1, block.size());
  }
  return arena;
}

// The reading process: each byte from the other one asks for a round.
void Read(const KvBenchPlan& plan, int socket, int control) {
  const auto arena = TouchedArena(plan);
  if (!arena.ok()) return;
  const std::vector<BlockId> order = ShuffledBlocks(plan.num_blocks, 2);
  for (char go = 0; Take(control, go);) {
    const double before = ProcessSeconds();
    if (!MoveBlocks(socket, **arena, order, /*sending=*/false)) return;
    if (!Put(control, ProcessSeconds() - before)) return;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<SocketBench>> SocketBench::Fork(const KvBenchPlan& plan) {
  ASSIGN_OR_RETURN(SocketPair pair, ConnectOverLoopback());
  ASSIGN_OR_RETURN(auto child, BenchChild::Fork([&](int control) {
                     pair.first = transfer::OwnedDescriptor();
                     Read(plan, pair.second.get(), control);
                   }));
  return std::unique_ptr<SocketBench>(
      new SocketBench(plan, std::move(pair.first), std::move(child)));
}

absl::Status SocketBench::Start() {
  ASSIGN_OR_RETURN(arena_, TouchedArena(plan_));
  order_ = ShuffledBlocks(plan_.num_blocks, 1);
  return child_->Start();
}

absl::StatusOr<SocketBench::Times> SocketBench::Round() {
  Times times;
  bool moved = Put(child_->fd(), char{1});
  const double before = ProcessSeconds();
  times.seconds = engine::SecondsOf([&] {
    moved = moved && MoveBlocks(socket_.get(), *arena_, order_, /*sending=*/true) &&
            Take(child_->fd(), times.receive_cpu);
  });
  times.send_cpu = ProcessSeconds() - before;
  if (moved) return times;
  return absl::UnavailableError("the connection between the measuring processes broke");
}

}  // namespace tandem::cli
