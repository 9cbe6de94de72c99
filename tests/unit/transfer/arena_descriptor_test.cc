// Goal: an arena's descriptor reaches who holds a ticket and the fleet's secret, once, and nobody
// else; what it reaches them as cannot be written, resized or made to fault; a descriptor that
// could is not mapped; and a copy's checksum is that of the bytes that landed. Seeds are printed.
#include "common/transfer/arena_descriptor.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>

#include "common/kv/block_arena.h"
#include "common/transfer/checked_copy.h"
#include "common/transfer/frame_auth.h"
#include "common/transfer/local_socket.h"
#include "tests/testing/status_matchers.h"

namespace tandem::transfer {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kCellBytes = 8192;

std::unique_ptr<kv::BlockArena> NewArena() {
  return *kv::BlockArena::Create(
      {.num_layers = 2, .block_tokens = 16, .layer_block_bytes = kCellBytes}, 4,
      kv::ArenaMemory::kShareable);
}

OwnedDescriptor Duplicate(int fd) { return OwnedDescriptor(::fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

class DescriptorTest : public ::testing::Test {
 protected:
  DescriptorTest() : arena_(NewArena()) {
    server_ = *ArenaDescriptorServer::Start("secret", arena_->descriptor());
  }
  // What a caller gets who signs `ticket` with `secret`.
  absl::StatusOr<std::optional<OwnedDescriptor>> Call(uint64_t number, const std::string& ticket,
                                                      const std::string& secret = "secret") {
    auto call = ArenaDescriptorCall::Start(secret, server_->socket_name(), ticket, number);
    EXPECT_OK(call.status());
    server_->Progress(now_);
    return (*call)->Poll();
  }
  // A connection that says `bytes` and nothing else; a socket.
  OwnedDescriptor Stranger(const std::string& bytes) {
    OwnedDescriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    const std::string& name = server_->socket_name();
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address),
                        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())),
              0);
    if (!bytes.empty()) ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    return socket;
  }

  std::unique_ptr<kv::BlockArena> arena_;
  std::unique_ptr<ArenaDescriptorServer> server_;
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(DescriptorTest, GivesTheArenaOnceForATicket) {
  const std::string ticket = server_->MakeTicket(7);
  const std::string other = server_->MakeTicket(8);
  ASSERT_OK_AND_ASSIGN(const auto descriptor, Call(7, ticket));
  ASSERT_TRUE(descriptor.has_value());
  ASSERT_OK_AND_ASSIGN(const auto mapped, MappedArena::Map(*descriptor, arena_->bytes().size()));
  // The reader sees what the owner writes afterwards.
  std::memset(arena_->Block(1, BlockId(2)).data(), 42, kCellBytes);
  const size_t at =
      static_cast<size_t>(arena_->Block(1, BlockId(2)).data() - arena_->bytes().data());
  EXPECT_EQ(mapped->bytes()[at], std::byte{42});
  EXPECT_EQ(Call(7, ticket).status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(DescriptorTest, RefusesEverybodyElse) {
  const std::string ticket = server_->MakeTicket(7);
  const std::string withdrawn = server_->MakeTicket(8);
  server_->Withdraw(8);
  const auto denied = absl::StatusCode::kPermissionDenied;
  EXPECT_EQ(Call(7, ticket, "another secret").status().code(), denied);
  EXPECT_EQ(Call(7, ticket, "").status().code(), denied);
  EXPECT_EQ(Call(9, ticket).status().code(), denied);     // another offer's number
  EXPECT_EQ(Call(7, withdrawn).status().code(), denied);  // another offer's ticket
  EXPECT_EQ(Call(8, withdrawn).status().code(), denied);  // after its end
  for (const size_t bytes : {1u, 8u, 39u, 41u, 4096u}) {
    const OwnedDescriptor stranger = Stranger(std::string(bytes, 'x'));
    server_->Progress(now_);
    char answer = 0;
    EXPECT_LE(::recv(stranger.get(), &answer, 1, MSG_DONTWAIT), 0) << bytes;
  }
  // None of this used the ticket up.
  EXPECT_OK(Call(7, ticket).status());
}

TEST_F(DescriptorTest, SilentCallersDelayOthersByASecondAtMost) {
  const std::string ticket = server_->MakeTicket(7);
  std::vector<OwnedDescriptor> silent;
  for (int i = 0; i < 16; ++i) silent.push_back(Stranger(""));
  server_->Progress(now_);
  auto call = *ArenaDescriptorCall::Start("secret", server_->socket_name(), ticket, 7);
  server_->Progress(now_);
  ASSERT_OK_AND_ASSIGN(auto waiting, call->Poll());
  EXPECT_FALSE(waiting.has_value());
  now_ += absl::Seconds(1);
  server_->Progress(now_);  // ends the silent ones
  server_->Progress(now_);
  ASSERT_OK_AND_ASSIGN(auto descriptor, call->Poll());
  EXPECT_TRUE(descriptor.has_value());
}

TEST(SealTest, AReaderCanNeitherWriteNorResize) {
  const auto arena = NewArena();
  const OwnedDescriptor reader = Duplicate(arena->descriptor());
  const size_t bytes = arena->bytes().size();
  EXPECT_EQ(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, reader.get(), 0),
            MAP_FAILED);
  EXPECT_EQ(::pwrite(reader.get(), "x", 1, 0), -1);
  EXPECT_EQ(::ftruncate(reader.get(), 0), -1);
  EXPECT_EQ(::ftruncate(reader.get(), static_cast<off_t>(2 * bytes)), -1);
  EXPECT_EQ(::fallocate(reader.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
  ASSERT_OK_AND_ASSIGN(const auto mapped, MappedArena::Map(reader, bytes));
  EXPECT_EQ(
      ::mprotect(const_cast<std::byte*>(mapped->bytes().data()), bytes, PROT_READ | PROT_WRITE),
      -1);
  // The owner goes on writing, and the memory outlives it.
  std::memset(arena->Block(0, BlockId(0)).data(), 7, kCellBytes);
  EXPECT_EQ(mapped->bytes()[0], std::byte{7});
}

TEST(SealTest, TheMemoryOutlivesItsOwner) {
  auto arena = NewArena();
  std::memset(arena->Block(0, BlockId(0)).data(), 7, kCellBytes);
  ASSERT_OK_AND_ASSIGN(const auto mapped,
                       MappedArena::Map(Duplicate(arena->descriptor()), arena->bytes().size()));
  arena.reset();
  EXPECT_EQ(mapped->bytes()[kCellBytes - 1], std::byte{7});
}

TEST(SealTest, WhatMayShrinkIsNotMapped) {
  const OwnedDescriptor unsealed(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), 8192), 0);
  EXPECT_THAT(MappedArena::Map(unsealed, 8192).status().message(), HasSubstr("seals"));
  ASSERT_EQ(::fcntl(unsealed.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_GROW), 0);
  EXPECT_THAT(MappedArena::Map(unsealed, 8192).status().message(), HasSubstr("seals"));
  int pipe_ends[2];
  ASSERT_EQ(::pipe(pipe_ends), 0);
  const OwnedDescriptor read_end(pipe_ends[0]), write_end(pipe_ends[1]);
  EXPECT_FALSE(MappedArena::Map(read_end, 8192).ok());
  const auto arena = NewArena();
  const OwnedDescriptor sealed = Duplicate(arena->descriptor());
  const size_t bytes = arena->bytes().size();
  EXPECT_THAT(MappedArena::Map(sealed, bytes + 4096).status().message(), HasSubstr("bytes"));
  EXPECT_FALSE(MappedArena::Map(sealed, bytes - 4096).ok());
  EXPECT_FALSE(MappedArena::Map(sealed, 0).ok());
}

TEST(CheckedCopyTest, CopiesAnyCutsAndSumsUpWhatLanded) {
  const uint32_t seed = std::random_device()();
  std::printf("seed %u\n", seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    const size_t bytes = 1 + random() % (round % 4 == 0 ? 300'000 : 3'000);
    std::vector<std::byte> from(bytes), to(bytes + 64);
    for (std::byte& byte : from) byte = static_cast<std::byte>(random());
    const size_t skew = random() % 64;
    // Few large pieces or many small ones, at any alignment.
    const size_t piece_max = round % 3 == 0 ? bytes : 1 + bytes / 7;
    const auto cut = [&](auto* data) {
      std::vector<absl::Span<std::remove_pointer_t<decltype(data)>>> pieces;
      for (size_t at = 0; at < bytes;) {
        const size_t length = std::min(bytes - at, 1 + random() % piece_max);
        pieces.push_back(absl::MakeSpan(data + at, length));
        at += length;
      }
      return pieces;
    };
    const GatherList source = cut(static_cast<const std::byte*>(from.data()));
    const uint64_t checksum = CopyWithChecksum(source, cut(to.data() + skew));
    EXPECT_EQ(std::memcmp(from.data(), to.data() + skew, bytes), 0);
    EXPECT_EQ(checksum, PayloadChecksum(source));
  }
}

// The kernel hands the descriptor over whatever comes with it.
TEST(LocalSocket, ADescriptorThatComesWithNoByteIsClosed) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const OwnedDescriptor sender(ends[0]), receiver(ends[1]);
  int pipe_ends[2];
  ASSERT_EQ(::pipe2(pipe_ends, O_CLOEXEC | O_NONBLOCK), 0);
  const OwnedDescriptor read_end(pipe_ends[0]);
  OwnedDescriptor write_end(pipe_ends[1]);
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(int));
  const int given = write_end.get();
  std::memcpy(CMSG_DATA(rights), &given, sizeof given);
  ASSERT_EQ(::sendmsg(sender.get(), &message, 0), 0);
  EXPECT_EQ(ReceiveDescriptor(receiver.get()).status().code(), absl::StatusCode::kPermissionDenied);
  write_end = OwnedDescriptor();
  char byte = 0;
  EXPECT_EQ(::read(read_end.get(), &byte, 1), 0) << "a copy of the pipe's other end is open";
}

}  // namespace
}  // namespace tandem::transfer
