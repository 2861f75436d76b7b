#!/usr/bin/env escript
%% -*- erlang -*-
%%! -hidden
%%
%% Questions and orders to nodes of RabbitMQ 3.10, in milliseconds: rabbitmqctl begins a machine of its own for each,
%% which takes a second of the processor; the management plugin tells what was true seconds ago.
%%
%% Each line of the input is a question in JSON, {"id", "node", "ask", "with"}. Each gets a line of the output,
%% {"id", "answer"}, or {"id", "not_now": why}, or {"id", "refused": why}, in whatever order they come. With the end of
%% the input this ends. What it calls is what rabbitmqctl calls.

-mode(compile).

-define(VHOST, <<"/">>).
-define(USER, <<"laboratory">>).
%% Less than whoever asks waits for.
-define(TIMEOUT_MS, 2000).
%% For a refusal of an order that takes as long as it takes.
-define(REFUSAL_MS, 300).

main([]) ->
    ok = io:setopts(standard_io, [binary, {encoding, latin1}]),
    %% What Erlang has to say by itself is no answer.
    ok = logger:remove_handler(default),
    ok = logger:add_handler(default, logger_std_h, #{config => #{type => standard_error}}),
    listen().

listen() ->
    case io:get_line(standard_io, "") of
        Line when is_binary(Line) ->
            Question = jsx:decode(Line, [return_maps]),
            spawn(fun() -> reply(Question) end),
            listen();
        _ ->
            halt(0)
    end.

reply(#{<<"id">> := Id, <<"node">> := Name, <<"ask">> := What, <<"with">> := With}) ->
    Said =
        try ask(binary_to_atom(What), binary_to_atom(Name), With) of
            Answer -> #{answer => Answer}
        catch
            throw:{not_now, Why} -> #{not_now => text(Why)};
            throw:{refused, Why} -> #{refused => text(Why)};
            Class:Error:Stack -> #{refused => text({Class, Error, hd(Stack)})}
        end,
    io:put_chars(standard_io, [jsx:encode(Said#{id => Id}, [uescape]), $\n]).

text(Why) when is_binary(Why) -> Why;
text(Why) -> unicode:characters_to_binary(io_lib:format("~tp", [Why])).

%% --- what can be asked

ask(queues, Node, _) ->
    Until = now_ms() + ?TIMEOUT_MS,
    Running = running(Node),
    Up = [{Queue, questions(Node, Queue)} || Queue <- call(Node, rabbit_amqqueue, list, [?VHOST])],
    Down = call(Node, rabbit_amqqueue, list_down, [?VHOST]),
    [view(Queue, Running, answers(Questions, Until)) || {Queue, Questions} <- Up] ++
        [view(Queue, [], []) || Queue <- Down];
ask(running, Node, _) ->
    running(Node);
ask(is_running, Node, _) ->
    call(Node, rabbit, is_running, []);
ask(set_policy, Node, #{<<"name">> := Name, <<"pattern">> := Pattern, <<"definition">> := Definition}) ->
    Set = [?VHOST, Name, Pattern, jsx:encode(Definition), 0, <<"queues">>, ?USER],
    done(call(Node, rabbit_policy, parse_set, Set));
ask(clear_policy, Node, #{<<"name">> := Name}) ->
    done(call(Node, rabbit_policy, delete, [?VHOST, Name, ?USER]));
ask(sync, Node, #{<<"queue">> := Name}) ->
    Key = rpc:async_call(Node, rabbit_mirror_queue_misc, sync_queue, [resource(Name)]),
    case rpc:nb_yield(Key, ?REFUSAL_MS) of
        {value, Answer} -> done(heard(Answer));
        timeout -> null
    end;
ask(cancel_sync, Node, #{<<"queue">> := Name}) ->
    done(call(Node, rabbit_mirror_queue_misc, cancel_sync_queue, [resource(Name)]));
ask(grow, Node, _) ->
    Grown = heard(rpc:call(Node, rabbit_quorum_queue, grow, [Node, <<".*">>, <<".*">>, all])),
    case [Why || {_Queue, {error, _, Why}} <- Grown] of
        [] -> null;
        [Why | _] -> throw({refused, Why})
    end;
ask(purge, Node, #{<<"queue">> := Name}) ->
    case call(Node, rabbit_amqqueue, lookup, [resource(Name)]) of
        {ok, Queue} -> done(call(Node, rabbit_amqqueue, purge, [Queue]));
        {error, Why} -> throw({refused, Why})
    end;
ask(memory_alarm, Node, _) ->
    done(call(Node, vm_memory_monitor, set_vm_memory_high_watermark, [0.0]));
ask(no_memory_alarm, Node, _) ->
    {ok, Configured} = call(Node, application, get_env, [rabbit, vm_memory_high_watermark]),
    done(call(Node, vm_memory_monitor, set_vm_memory_high_watermark, [Configured])).

running(Node) -> call(Node, rabbit_mnesia, cluster_nodes, [running]).

%% --- queues

%% A queue of a node that stands still does not answer; all that nodes agree on is known without it. What a listing says
%% of a quorum queue was counted some time ago: its leader is asked itself.
questions(Node, Queue) ->
    case {is_quorum(Queue), amqqueue:get_pid(Queue)} of
        {true, {_, Leader} = Server} ->
            [
                {info, rpc:async_call(Node, rabbit_amqqueue, info, [Queue, [leader, members, online]])},
                {messages_ready, count(Leader, Server, fun rabbit_fifo:query_messages_ready/1)},
                {messages_unacknowledged, count(Leader, Server, fun rabbit_fifo:query_messages_checked_out/1)}
            ];
        _ ->
            Counts = [messages_ready, messages_unacknowledged],
            [{info, rpc:async_call(Node, rabbit_amqqueue, info, [Queue, Counts])}]
    end.

count(Leader, Server, Count) -> rpc:async_call(Leader, ra, local_query, [Server, Count]).

answers(Questions, Until) ->
    lists:append([told(What, rpc:nb_yield(Key, max(Until - now_ms(), 0))) || {What, Key} <- Questions]).

told(info, {value, Info}) when is_list(Info) -> Info;
told(What, {value, {ok, {_Index, Count}, _Leader}}) -> [{What, Count}];
told(_, _) -> [].

view(Queue, Running, Info) ->
    {Master, Mirrors, Synchronised} =
        case is_quorum(Queue) of
            true -> of_quorum(Queue, Info);
            false -> of_mirrored(Queue, Running)
        end,
    {resource, _, queue, Name} = amqqueue:get_name(Queue),
    #{
        queue => Name,
        master => Master,
        incarnation => incarnation(Queue),
        mirrors => Mirrors,
        synchronised => Synchronised,
        ready => proplists:get_value(messages_ready, Info, null),
        unacked => proplists:get_value(messages_unacknowledged, Info, null)
    }.

%% A process has another identity whenever it is begun. What leads a quorum queue is no process of its own.
incarnation(Queue) ->
    case amqqueue:get_pid(Queue) of
        Pid when is_pid(Pid) -> base64:encode(term_to_binary(Pid));
        _ -> <<>>
    end.

is_quorum(Queue) -> amqqueue:get_type(Queue) =:= rabbit_quorum_queue.

of_mirrored(Queue, Running) ->
    Nodes = fun(Pids) when is_list(Pids) -> [node(Pid) || Pid <- Pids]; (_) -> [] end,
    Master =
        case amqqueue:get_pid(Queue) of
            Pid when is_pid(Pid) -> alive(node(Pid), Running);
            _ -> null
        end,
    {Master, Nodes(amqqueue:get_slave_pids(Queue)), Nodes(amqqueue:get_sync_slave_pids(Queue))}.

of_quorum(Queue, Info) ->
    Online = proplists:get_value(online, Info, []),
    Leader = alive(proplists:get_value(leader, Info, null), Online),
    Members = proplists:get_value(members, Info, maps:get(nodes, amqqueue:get_type_state(Queue), [])),
    {Leader, lists:delete(Leader, Members), lists:delete(Leader, Online)}.

alive(Node, Nodes) ->
    case lists:member(Node, Nodes) of
        true -> Node;
        false -> null
    end.

%% --- calling

resource(Name) -> {resource, ?VHOST, queue, Name}.

call(Node, Module, Function, Arguments) ->
    heard(rpc:call(Node, Module, Function, Arguments, ?TIMEOUT_MS)).

heard({badrpc, {'EXIT', {undef, Why}}}) -> throw({refused, {undef, Why}});
heard({badrpc, Why}) -> throw({not_now, Why});
heard(Answer) -> Answer.

done(ok) -> null;
done({ok, _}) -> null;
done(Why) -> throw({refused, Why}).

now_ms() -> erlang:monotonic_time(millisecond).
