"""Publishers and consumers of the laboratory: a real client library, each in a process of its own, everything recorded.

They know a broker as its users do, by AMQP 0-9-1, and import nothing of any. What they record is defined in
`chaos.record`.

==================  ====================================================================================================
body                identity in the body of a message
publisher           what a publisher has published and what it knows of it; no clock, no socket
consumer            what a consumer has of its queue, and how it proves what it has settled; likewise
signs_of_life       when a connection was alive for certain; likewise
adapter, link       pika on a transport of asyncio; one connection with one channel
client              one channel after the other, at one endpoint after the other
publishing          a publisher on its connection
consuming           a consumer on its connection
options, process    orders, and the process that follows them
fleet               begins, watches and stops processes
==================  ====================================================================================================
"""
