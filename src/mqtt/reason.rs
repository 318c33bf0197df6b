//! MQTT 5 reason codes (section 2.4), one closed list; each packet allows a part of it.

macro_rules! reason_codes {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        /// A reason code. Where MQTT gives one value several names (0x00), the first one stands.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum ReasonCode { $($name = $value,)* }

        impl ReasonCode {
            pub fn from_byte(byte: u8) -> Option<Self> {
                match byte { $($value => Some(ReasonCode::$name),)* _ => None }
            }

            /// The specification's words for it, as logs and Reason Strings use them.
            pub fn text(self) -> &'static str {
                match self { $(ReasonCode::$name => $text,)* }
            }
        }
    };
}

reason_codes! {
    Success = 0x00, "success";
    GrantedQoS1 = 0x01, "granted QoS 1";
    GrantedQoS2 = 0x02, "granted QoS 2";
    DisconnectWithWill = 0x04, "disconnect with Will message";
    NoMatchingSubscribers = 0x10, "no matching subscribers";
    NoSubscriptionExisted = 0x11, "no subscription existed";
    ContinueAuthentication = 0x18, "continue authentication";
    ReAuthenticate = 0x19, "re-authenticate";
    UnspecifiedError = 0x80, "unspecified error";
    MalformedPacket = 0x81, "malformed packet";
    ProtocolError = 0x82, "protocol error";
    ImplementationSpecificError = 0x83, "implementation specific error";
    UnsupportedProtocolVersion = 0x84, "unsupported protocol version";
    ClientIdentifierNotValid = 0x85, "client identifier not valid";
    BadUserNameOrPassword = 0x86, "bad user name or password";
    NotAuthorized = 0x87, "not authorized";
    ServerUnavailable = 0x88, "server unavailable";
    ServerBusy = 0x89, "server busy";
    Banned = 0x8A, "banned";
    ServerShuttingDown = 0x8B, "server shutting down";
    BadAuthenticationMethod = 0x8C, "bad authentication method";
    KeepAliveTimeout = 0x8D, "keep alive timeout";
    SessionTakenOver = 0x8E, "session taken over";
    TopicFilterInvalid = 0x8F, "topic filter invalid";
    TopicNameInvalid = 0x90, "topic name invalid";
    PacketIdentifierInUse = 0x91, "packet identifier in use";
    PacketIdentifierNotFound = 0x92, "packet identifier not found";
    ReceiveMaximumExceeded = 0x93, "receive maximum exceeded";
    TopicAliasInvalid = 0x94, "topic alias invalid";
    PacketTooLarge = 0x95, "packet too large";
    MessageRateTooHigh = 0x96, "message rate too high";
    QuotaExceeded = 0x97, "quota exceeded";
    AdministrativeAction = 0x98, "administrative action";
    PayloadFormatInvalid = 0x99, "payload format invalid";
    RetainNotSupported = 0x9A, "retain not supported";
    QoSNotSupported = 0x9B, "QoS not supported";
    UseAnotherServer = 0x9C, "use another server";
    ServerMoved = 0x9D, "server moved";
    SharedSubscriptionsNotSupported = 0x9E, "shared subscriptions not supported";
    ConnectionRateExceeded = 0x9F, "connection rate exceeded";
    MaximumConnectTime = 0xA0, "maximum connect time";
    SubscriptionIdentifiersNotSupported = 0xA1, "subscription identifiers not supported";
    WildcardSubscriptionsNotSupported = 0xA2, "wildcard subscriptions not supported";
}

impl ReasonCode {
    pub fn byte(self) -> u8 {
        self as u8
    }

    /// 0x80 and above: the operation failed.
    pub fn is_error(self) -> bool {
        self.byte() >= 0x80
    }
}
