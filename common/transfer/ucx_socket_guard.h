// Keeps bytes of strangers away from UCX. UCX 1.13 trusts what arrives on its TCP sockets: 13 bytes
// of its own protocol can name an address of this process and what to write there, whatever
// features its context has. So a process that connects must first prove, on the socket, that it
// holds the fleet's secret; only then does UCX learn of the connection (docs/adr/0025).
//
//   connecting side   connect() ─▶ random | tag ─▶ then UCX's own bytes
//   listening side    the kernel holds a connection back until bytes are there; accept() reads
//                     these 48 and gives UCX the socket, or closes it and counts
//
// The tag is a keyed checksum over the random bytes and both ends' addresses, so it is of no use on
// another connection. UCX has no hook for this. Therefore ucx_socket_guard.cc defines listen,
// accept, connect and send in front of the C library's; calls from other code go through unchanged.
// None of them waits: a host that does not answer costs its own connection, and after 3 s UCX hears
// that it failed.
//
// With an empty secret any process that knows this protocol gets through; port scanners do not.
//
// Thread safety: the thread that calls UCX uses Scope; any thread may call refused(). UCX accepts
// on a thread of its own. Owner: UcxTransport.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace tandem::transfer {

class UcxSocketGuard {
 public:
  explicit UcxSocketGuard(const std::string& secret);
  // REQUIRES: the UCX workers whose sockets it guards are destroyed.
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

  // Connections that the guard closed before UCX learned of them.
  int64_t refused() const;

 private:
  const std::shared_ptr<struct GuardState> state_;  // shared with an accept() under way
};

}  // namespace tandem::transfer
