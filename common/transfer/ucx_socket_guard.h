// Keeps bytes of strangers away from UCX. What arrives on a TCP socket of UCX's 1.13 is trusted: 13
// bytes of its own protocol name an address of this process and what to write there, whatever
// features its context has. So who connects must first prove, on the socket, that it holds the
// fleet's secret; only then does UCX learn of the connection (docs/adr/0025).
//
//   connecting side   connect() ─▶ random | tag ─▶ then UCX's own bytes
//   listening side    the kernel holds a connection back until bytes are there; accept() reads
//                     these 48 and gives UCX the socket, or closes it and counts
//
// The tag is made with the secret over the random bytes and both ends' addresses, so that it is of
// no use on another connection. UCX offers no place for this: its calls of listen, accept and
// connect are answered by functions of this file that stand in front of the C library's (all other
// callers' go through unchanged).
//
// Under an empty secret anybody who knows this protocol gets through; port scanners do not.
//
// Thread safety: Scope by the thread that calls UCX; refused() from any thread. UCX accepts on a
// thread of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace tandem::transfer {

class UcxSocketGuard {
 public:
  explicit UcxSocketGuard(const std::string& secret);
  // After the UCX workers whose sockets it guards.
  ~UcxSocketGuard();
  UcxSocketGuard(const UcxSocketGuard&) = delete;
  UcxSocketGuard& operator=(const UcxSocketGuard&) = delete;

  // While it lives, sockets that this thread makes listen or connects are this guard's.
  class Scope {
   public:
    explicit Scope(const UcxSocketGuard& guard);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const std::shared_ptr<struct GuardState>* const outer_;
  };

  // Connections that were closed before UCX heard of them.
  int64_t refused() const;

 private:
  const std::shared_ptr<struct GuardState> state_;  // shared with an accept() under way
};

}  // namespace tandem::transfer
