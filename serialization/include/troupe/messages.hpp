#pragma once

#include <troupe/messages/begin.hpp>
#include <troupe/messages/checkpoint.hpp>
#include <troupe/messages/commands.hpp>
#include <troupe/messages/node.hpp>
#include <troupe/messages/regroup.hpp>
#include <troupe/messages/staging.hpp>
#include <troupe/messages/trainer.hpp>
#include <troupe/messages/transport.hpp>
#include <troupe/messages/worker.hpp>

/// The messages between actors, split by direction. A message that can arrive late carries the run and, once there is
/// one, the generation. Bulk bytes never travel in an actor message.
