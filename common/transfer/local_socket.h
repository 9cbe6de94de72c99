// Unix sockets between processes of one host: abstract names, the peer's user, and the passing of
// a descriptor. An abstract name needs no file and ends with its socket. It belongs to the network
// namespace: processes in two of them cannot reach each other.
// Thread safety: pure functions on the caller's sockets. No call blocks.
#pragma once

#include <sys/socket.h>

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/transfer/owned_descriptor.h"

namespace tandem::transfer {

// SOCK_SEQPACKET: each message is whole, it is there or is not. SOCK_STREAM: bytes.
enum class LocalSocketType { kMessages = SOCK_SEQPACKET, kStream = SOCK_STREAM };

// A listening socket of this name. Errors: kUnavailable when the system gives none,
// kInvalidArgument for a name that is empty or too long.
absl::StatusOr<OwnedDescriptor> ListenLocal(const std::string& name, LocalSocketType type,
                                            int backlog);
// Errors: kResourceExhausted when too many callers wait there already, which passes; kUnavailable
// when no process of this network namespace listens; kInvalidArgument as above.
absl::StatusOr<OwnedDescriptor> ConnectLocal(const std::string& name, LocalSocketType type);

// Whether the process at the other end runs as this process's user.
bool IsOwnUser(int socket);
// Sends one byte with `descriptor` beside it. False: the other end has gone.
bool SendDescriptor(int socket, int descriptor);
// Takes what SendDescriptor sent; nullopt: nothing yet. Errors: kPermissionDenied when the other
// end closed, or sent a byte without a descriptor.
absl::StatusOr<std::optional<OwnedDescriptor>> ReceiveDescriptor(int socket);

}  // namespace tandem::transfer
